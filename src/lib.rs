pub mod config;
pub mod namesrv;
