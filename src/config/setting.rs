//! One row for each key: what its text may be, what it means, how it is shown again.
//!
//! [`settings!`] turns a table of rows into a struct whose fields are Java's keys with types and units, and into the
//! functions that parse a key, list the keys and print them. A key that is in such a table *works*: a field that
//! nothing reads has no place here (see `keys.rs` for those that are only known by name).

use ringmq_storage::flush::Medium;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// A type that a key's value can have.
pub trait Setting: Sized {
    type Rule;
    /// `None` when `text` is not one of the values that [`Setting::allowed`] describes.
    fn parse(text: &str, rule: &Self::Rule) -> Option<Self>;
    fn allowed(rule: &Self::Rule) -> String;
    fn show(&self) -> String;
}

impl Setting for bool {
    type Rule = ();
    /// Java reads everything but `true` as false; a typing error that turns a switch off is no way to start a broker.
    fn parse(text: &str, (): &()) -> Option<bool> {
        match text {
            _ if text.eq_ignore_ascii_case("true") => Some(true),
            _ if text.eq_ignore_ascii_case("false") => Some(false),
            _ => None,
        }
    }
    fn allowed((): &()) -> String {
        "true or false".to_string()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

macro_rules! number {
    ($($number:ty)*) => { $(
        impl Setting for $number {
            type Rule = RangeInclusive<$number>;
            fn parse(text: &str, range: &Self::Rule) -> Option<$number> {
                text.parse().ok().filter(|number| range.contains(number))
            }
            fn allowed(range: &Self::Rule) -> String {
                format!("a whole number from {} to {}", range.start(), range.end())
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )* };
}
number! { u8 u16 u32 u64 }

impl Setting for Medium {
    type Rule = ();
    fn parse(text: &str, (): &()) -> Option<Medium> {
        match text {
            "write" => Some(Medium::Write),
            "mapped" => Some(Medium::Mapped),
            _ => None,
        }
    }
    fn allowed((): &()) -> String {
        "write or mapped".to_string()
    }
    fn show(&self) -> String {
        match self {
            Medium::Write => "write",
            Medium::Mapped => "mapped",
        }
        .to_string()
    }
}

/// `flushDiskType`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushDiskType {
    Async,
    Sync,
}

impl Setting for FlushDiskType {
    type Rule = ();
    fn parse(text: &str, (): &()) -> Option<FlushDiskType> {
        match text {
            _ if text.eq_ignore_ascii_case("ASYNC_FLUSH") => Some(FlushDiskType::Async),
            _ if text.eq_ignore_ascii_case("SYNC_FLUSH") => Some(FlushDiskType::Sync),
            _ => None,
        }
    }
    fn allowed((): &()) -> String {
        "ASYNC_FLUSH or SYNC_FLUSH".to_string()
    }
    fn show(&self) -> String {
        match self {
            FlushDiskType::Async => "ASYNC_FLUSH",
            FlushDiskType::Sync => "SYNC_FLUSH",
        }
        .to_string()
    }
}

/// Times of the delay levels in ms, from level 1 on: `1s 5s 10s 30s 1m 2h 1d`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayLevels {
    pub ms: Vec<i64>,
}

/// Each level is a queue of the schedule topic and a task.
const DELAY_LEVELS_MAX: usize = 1000;
const DELAY_MS_MAX: i64 = 100 * 365 * 86_400_000;
const DELAY_UNITS: [(char, i64); 4] = [('d', 86_400_000), ('h', 3_600_000), ('m', 60_000), ('s', 1000)];

impl Setting for DelayLevels {
    type Rule = ();
    fn parse(text: &str, (): &()) -> Option<DelayLevels> {
        let level = |level: &str| {
            let (unit, unit_ms) = DELAY_UNITS.into_iter().find(|(unit, _)| level.ends_with(*unit))?;
            let count: u32 = level.strip_suffix(unit)?.parse().ok()?;
            i64::from(count).checked_mul(unit_ms).filter(|ms| *ms <= DELAY_MS_MAX)
        };
        let ms: Option<Vec<i64>> = text.split_ascii_whitespace().map(level).collect();
        ms.filter(|ms| (1..=DELAY_LEVELS_MAX).contains(&ms.len())).map(|ms| DelayLevels { ms })
    }
    fn allowed((): &()) -> String {
        format!("1 to {DELAY_LEVELS_MAX} times separated by blanks, each a number and one of s, m, h, d: 1s 5s 1m 2h")
    }
    fn show(&self) -> String {
        let level = |ms: &i64| {
            let unit = DELAY_UNITS.iter().find(|(_, unit_ms)| *ms > 0 && ms % unit_ms == 0);
            let (unit, unit_ms) = unit.unwrap_or(&('s', 1000));
            format!("{}{unit}", ms / unit_ms)
        };
        self.ms.iter().map(level).collect::<Vec<String>>().join(" ")
    }
}

/// `deleteWhen`: hours of the day, bit h for hour h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours(pub u32);

impl Setting for Hours {
    type Rule = ();
    fn parse(text: &str, (): &()) -> Option<Hours> {
        let hours = text.split(';').map(|hour| hour.trim().parse().ok().filter(|hour: &u32| *hour < 24));
        hours.collect::<Option<Vec<u32>>>().map(|hours| Hours(hours.iter().fold(0, |bits, hour| bits | 1 << hour)))
    }
    fn allowed((): &()) -> String {
        "hours from 00 to 23 separated by ;".to_string()
    }
    fn show(&self) -> String {
        let hours = (0..24).filter(|hour| self.0 >> hour & 1 == 1);
        hours.map(|hour| format!("{hour:02}")).collect::<Vec<String>>().join(";")
    }
}

/// The shapes a text may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// Broker and cluster names: they stand in `;`-separated lists and in JSON keys.
    Name,
    Topic,
    /// A host name or address without a port: what clients are told to connect to.
    Host,
    /// Anything on one line.
    Line,
}

impl Setting for String {
    type Rule = Text;
    fn parse(text: &str, rule: &Text) -> Option<String> {
        let fits = match rule {
            Text::Name => {
                (1..=127).contains(&text.len())
                    && text.bytes().all(|b| b.is_ascii_graphic() && !b";:,\"'\\/{}".contains(&b))
            }
            Text::Topic => {
                (1..=127).contains(&text.len())
                    && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"%|_-".contains(&b))
            }
            Text::Host => {
                (1..=255).contains(&text.len())
                    && text.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:%".contains(&b))
            }
            Text::Line => !text.contains(char::is_control),
        };
        fits.then(|| text.to_string())
    }
    fn allowed(rule: &Text) -> String {
        match rule {
            Text::Name => "1 to 127 printable ASCII characters without blanks and without ; : , \" ' \\ / { }",
            Text::Topic => "1 to 127 of the characters % | a-z A-Z 0-9 _ -",
            Text::Host => "a host name or an IP address, without a port",
            Text::Line => "one line of text",
        }
        .to_string()
    }
    fn show(&self) -> String {
        self.clone()
    }
}

impl Setting for PathBuf {
    type Rule = ();
    fn parse(text: &str, (): &()) -> Option<PathBuf> {
        (!text.is_empty() && !text.contains(char::is_control)).then(|| PathBuf::from(text))
    }
    fn allowed((): &()) -> String {
        "the path of a file or folder".to_string()
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Setting for IpAddr {
    type Rule = ();
    fn parse(text: &str, (): &()) -> Option<IpAddr> {
        text.parse().ok()
    }
    fn allowed((): &()) -> String {
        "an IP address of this machine, or 0.0.0.0 for all".to_string()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// `host:port` items, separated by `;` in the file.
impl Setting for Vec<String> {
    type Rule = ();
    fn parse(text: &str, (): &()) -> Option<Vec<String>> {
        let items: Vec<String> =
            text.split(';').map(str::trim).filter(|item| !item.is_empty()).map(str::to_string).collect();
        items.iter().all(|item| is_host_and_port(item)).then_some(items)
    }
    fn allowed((): &()) -> String {
        "host:port, several separated by ;".to_string()
    }
    fn show(&self) -> String {
        self.join(";")
    }
}

fn is_host_and_port(item: &str) -> bool {
    item.rsplit_once(':').is_some_and(|(host, port)| {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        String::parse(host, &Text::Host).is_some() && u16::parse(port, &(1..=65535)).is_some()
    })
}

/// `pub struct Name { field: type = "javaKey" plain|important, rule, |machine| default; … }`
macro_rules! settings {
    (
        $(#[$struct_doc:meta])*
        pub struct $name:ident {
            $( $(#[$doc:meta])* $field:ident : $ty:ty = $key:literal $mark:ident, $rule:expr, $default:expr; )*
        }
    ) => {
        $(#[$struct_doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $( $(#[$doc])* pub $field: $ty, )*
            pub(super) notes: $crate::config::Notes,
        }

        impl $name {
            /// Every key that works, with Java's mark for the important ones.
            pub const KEYS: &'static [(&'static str, bool)] = &[ $( ($key, settings!(@$mark)), )* ];

            fn names() -> Vec<&'static str> {
                Self::KEYS.iter().map(|(key, _)| *key).collect()
            }

            fn defaults(machine: &$crate::config::Machine) -> $name {
                $name {
                    $( $field: { let default: fn(&$crate::config::Machine) -> $ty = $default; default(machine) }, )*
                    notes: Default::default(),
                }
            }

            /// `None` when the key is not one of [`Self::KEYS`]; `Err` says which values are allowed.
            pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
                use $crate::config::setting::Setting;
                Some(match key {
                    $( $key => {
                        let rule: <$ty as Setting>::Rule = $rule;
                        match <$ty as Setting>::parse(value, &rule) {
                            Some(parsed) => { self.$field = parsed; Ok(()) }
                            None => Err(<$ty as Setting>::allowed(&rule)),
                        }
                    } )*
                    _ => return None,
                })
            }

            /// The value of each of [`Self::KEYS`] as a file would spell it, in that order.
            fn shown(&self) -> Vec<(&'static str, String)> {
                use $crate::config::setting::Setting;
                vec![ $( ($key, Setting::show(&self.$field)), )* ]
            }
        }
    };
    (@important) => { true };
    (@plain) => { false };
}
pub(super) use settings;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_levels_are_times_with_units() {
        for (text, want) in [
            ("1s", Some(&[1_000][..])),
            ("0s 90m  2h\t3d", Some(&[0, 5_400_000, 7_200_000, 259_200_000])),
            ("", None),
            (" ", None),
            ("1", None),
            ("s", None),
            ("-1s", None),
            ("1w", None),
            ("1.5s", None),
            ("99999999999d", None),
        ] {
            assert_eq!(DelayLevels::parse(text, &()).map(|levels| levels.ms).as_deref(), want, "{text:?}");
        }
        let default = DelayLevels { ms: ringmq_storage::record::properties::DELAYS_MS.to_vec() };
        assert_eq!(default.show(), "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h");
        assert_eq!(DelayLevels::parse("0s 61s 24h", &()).unwrap().show(), "0s 61s 1d");
    }

    #[test]
    fn each_type_takes_its_values_and_no_others() {
        for (text, want) in [("true", Some(true)), ("FALSE", Some(false)), ("yes", None), ("", None), ("1", None)] {
            assert_eq!(bool::parse(text, &()), want, "{text:?}");
        }
        for (text, want) in
            [("3", Some(3)), ("65534", Some(65534)), ("2", None), ("-1", None), ("70000", None), ("1e3", None)]
        {
            assert_eq!(u16::parse(text, &(3..=65534)), want, "{text:?}");
        }
        for (text, fits) in [
            ("broker-a", true),
            ("host.example_1", true),
            ("", false),
            ("a b", false),
            ("a;b", false),
            ("a:1", false),
            ("ä", false),
        ] {
            assert_eq!(String::parse(text, &Text::Name).is_some(), fits, "{text:?}");
        }
        for (text, want) in [
            ("10.0.0.1:9876", Some(1)),
            ("a:1;b:2", Some(2)),
            ("a:1; b:2;", Some(2)),
            ("[::1]:9876", Some(1)),
            ("", Some(0)),
            ("a", None),
            ("a:0", None),
            ("a:x", None),
            (":1", None),
            ("a:1,b:2", None),
        ] {
            assert_eq!(Vec::<String>::parse(text, &()).map(|items| items.len()), want, "{text:?}");
        }
    }
}
