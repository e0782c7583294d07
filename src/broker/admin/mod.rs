//! What mqadmin asks a broker beside topics, groups and clients.

pub mod runtime;
pub mod tables;
