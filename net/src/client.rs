//! A small blocking client on std sockets: registration, config sync, tests. Never on a shard.
