//! JSON and binary bodies, by noun.
