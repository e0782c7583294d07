//! JSON and binary bodies, by noun: exact member names, lenient to read, written as Java writes.
//!
//! Reading: a missing member takes its default, an unknown one is ignored, numbers may be quoted, booleans may
//! be text or 0 and 1, the dialect of fastjson is understood. Writing: members in alphabetical order, absent
//! ones omitted, never a `$ref`. Each body is read by `from_json` and written by `to_json`.
//!
//! fastjson's `{"$ref":…}` is not resolved: it stands where one object occurs twice in a body, which no body
//! read here has from an official peer. Such an object reads as one whose members are all absent.

pub mod cluster;
pub mod filter;
pub mod group;
pub mod heartbeat;
mod lenient;
pub mod lock;
pub mod offsets;
pub mod queue;
pub mod register;
pub mod route;
pub mod stats;
pub mod topic;

/// Gives bodies their reading and writing ends; `strict` quotes map keys, `java` leaves integers and objects
/// raw as fastjson does.
macro_rules! json_body {
    (@write strict, $value:expr) => { crate::protocol::fastjson::to_vec($value) };
    (@write java, $value:expr) => { crate::protocol::fastjson::to_vec_java($value) };
    ($style:ident: $($name:ident),+) => {
        $(impl $name {
            /// # Errors
            /// A body that is empty, `null`, no JSON, or of another shape.
            pub fn from_json(body: &[u8]) -> Result<Self, crate::protocol::fastjson::JsonError> {
                crate::protocol::fastjson::from_slice(body)
            }

            pub fn to_json(&self) -> Vec<u8> {
                crate::protocol::body::json_body!(@write $style, self)
            }
        })+
    };
}
pub(crate) use json_body;

/// An enum that travels by its Java name; read by name or ordinal, an unknown one is the first variant.
macro_rules! java_enum {
    ($(#[$meta:meta])* $name:ident { $first:ident = $first_wire:literal, $($variant:ident = $wire:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            #[default]
            $first,
            $($variant,)*
        }

        impl $name {
            const ALL: &'static [Self] = &[Self::$first, $(Self::$variant,)*];

            pub fn name(self) -> &'static str {
                match self {
                    Self::$first => $first_wire,
                    $(Self::$variant => $wire,)*
                }
            }

            /// `None` for a text that is none of the names.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|variant| variant.name() == name)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = crate::protocol::body::lenient::text(deserializer)?;
                let by_ordinal = || text.parse().ok().and_then(|ordinal: usize| Self::ALL.get(ordinal).copied());
                Ok(Self::from_name(&text).or_else(by_ordinal).unwrap_or_default())
            }
        }
    };
}
pub(crate) use java_enum;
