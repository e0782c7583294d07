//! When a request of an open loop is due, whatever the broker does.

/// Request number `n` is due `n * messages / rate` seconds after the start.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Monotonic.
    pub start_ns: u64,
    /// Messages a second.
    pub rate: u64,
    /// Messages of a request.
    pub messages: u64,
}

impl Schedule {
    pub fn intended_ns(&self, number: u64) -> u64 {
        let messages = u128::from(number) * u128::from(self.messages);
        self.start_ns + (messages * 1_000_000_000 / u128::from(self.rate)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_does_not_drift() {
        // messages, number, intended
        for (messages, number, want) in [
            (1, 0, 100),
            (1, 1, 333_333_433),
            (1, 3, 1_000_000_100),
            (1, 3_000_000, 1_000_000_000_000_100),
            (32, 3, 32_000_000_100),
        ] {
            let schedule = Schedule { start_ns: 100, rate: 3, messages };
            assert_eq!(schedule.intended_ns(number), want, "number={number}");
        }
    }
}
