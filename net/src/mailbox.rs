//! Bounded mailbox into a reactor: any thread posts, the owner takes all of them in its next turn.

/// The posting end. Posting to a sleeping reactor wakes it (eventfd), once for many mails.
pub struct MailSender<M> {
    _m: std::marker::PhantomData<M>,
}

impl<M> Clone for MailSender<M> {
    fn clone(&self) -> Self {
        todo!()
    }
}

impl<M: Send> MailSender<M> {
    /// `Err` gives the mail back: the box is full or its reactor is gone.
    pub fn send(&self, _mail: M) -> Result<(), M> {
        todo!()
    }
}
