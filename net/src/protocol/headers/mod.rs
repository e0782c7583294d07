//! Typed views of extFields, by capability.
