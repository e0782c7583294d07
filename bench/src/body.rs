//! How large the bodies of a run are.
//!
//! ```text
//! 1k                 every body
//! 128..4k            evenly between the two, both included
//! 128:6,1k:3,16k:1   some sizes, each as often as its weight says
//! ```

use crate::chance;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

pub const BODY_BYTES_MAX: u32 = 4_000_000;
const WEIGHT_MAX: u32 = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BodySizes {
    Fixed(u32),
    Even {
        min: u32,
        max: u32,
    },
    /// Size and weight.
    Weighted(Vec<(u32, u32)>),
}

impl BodySizes {
    /// Bytes of the `number`-th body.
    pub fn size(&self, seed: u64, number: u64) -> usize {
        let bytes = match self {
            Self::Fixed(bytes) => *bytes,
            Self::Even { min, max } => min + chance::below(seed, number, u64::from(max - min) + 1) as u32,
            Self::Weighted(sizes) => {
                let all = sizes.iter().map(|(_, weight)| u64::from(*weight)).sum();
                let mut at = chance::below(seed, number, all);
                let found = sizes.iter().find(|(_, weight)| {
                    let is_here = at < u64::from(*weight);
                    at = at.saturating_sub(u64::from(*weight));
                    is_here
                });
                found.expect("the place is below the sum of the weights").0
            }
        };
        bytes as usize
    }

    pub fn max(&self) -> usize {
        let bytes = match self {
            Self::Fixed(bytes) => *bytes,
            Self::Even { max, .. } => *max,
            Self::Weighted(sizes) => sizes.iter().map(|(bytes, _)| *bytes).max().unwrap_or_default(),
        };
        bytes as usize
    }

    pub fn min(&self) -> usize {
        let bytes = match self {
            Self::Fixed(bytes) => *bytes,
            Self::Even { min, .. } => *min,
            Self::Weighted(sizes) => sizes.iter().map(|(bytes, _)| *bytes).min().unwrap_or_default(),
        };
        bytes as usize
    }
}

impl FromStr for BodySizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((min, max)) = text.split_once("..") {
            let (min, max) = (bytes(min)?, bytes(max)?);
            if min > max {
                return Err(format!("{min} is more than {max}"));
            }
            return Ok(Self::Even { min, max });
        }
        if !text.contains([',', ':']) {
            return bytes(text).map(Self::Fixed);
        }
        let one = |text: &str| {
            let (size, weight) = text.split_once(':').unwrap_or((text, "1"));
            let weight = weight.trim().parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
            let weight = weight.ok_or_else(|| format!("{text:?} has no weight from 1 to {WEIGHT_MAX}"))?;
            Ok::<_, String>((bytes(size)?, weight))
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Self::Weighted)
    }
}

/// `512`, `1k`, `2m`: units of 1024.
fn bytes(text: &str) -> Result<u32, String> {
    let text = text.trim();
    let (digits, unit) = match text.to_ascii_lowercase().strip_suffix(['k', 'm']) {
        Some(digits) => (digits.to_owned(), if text.ends_with(['k', 'K']) { 1 << 10 } else { 1 << 20 }),
        None => (text.to_owned(), 1),
    };
    let bytes = digits.parse::<u32>().ok().and_then(|count| count.checked_mul(unit));
    bytes.filter(|bytes| (1..=BODY_BYTES_MAX).contains(bytes)).ok_or_else(|| {
        format!("{text:?} is no size from 1 to {BODY_BYTES_MAX} bytes; understood: 1k, 128..4k, 128:6,1k:3,16k:1")
    })
}

impl fmt::Display for BodySizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => write!(f, "{bytes}"),
            Self::Even { min, max } => write!(f, "{min}..{max}"),
            Self::Weighted(sizes) => {
                let texts: Vec<String> = sizes.iter().map(|(bytes, weight)| format!("{bytes}:{weight}")).collect();
                f.write_str(&texts.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_text() {
        for (text, want) in [
            ("1024", BodySizes::Fixed(1024)),
            ("1k", BodySizes::Fixed(1024)),
            ("2M", BodySizes::Fixed(2 << 20)),
            ("128..4k", BodySizes::Even { min: 128, max: 4096 }),
            ("7..7", BodySizes::Even { min: 7, max: 7 }),
            ("128:6,1k:3,16k", BodySizes::Weighted(vec![(128, 6), (1024, 3), (16384, 1)])),
        ] {
            assert_eq!(text.parse(), Ok(want.clone()), "{text}");
            assert_eq!(want.to_string().parse(), Ok(want));
        }
        for bad in ["", "0", "k", "4k..1k", "1..", "5m", "1k:0", "1k:x", "-1", "1,"] {
            assert!(bad.parse::<BodySizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_follow_their_distribution() {
        let even: BodySizes = "100..199".parse().unwrap();
        let sizes: Vec<usize> = (0..10_000).map(|number| even.size(1, number)).collect();
        assert_eq!((sizes.iter().min(), sizes.iter().max()), (Some(&100), Some(&199)));
        assert_eq!((even.min(), even.max()), (100, 199));
        let weighted: BodySizes = "10:3,20:1".parse().unwrap();
        let small = (0..10_000).filter(|number| weighted.size(1, *number) == 10).count();
        assert!((7_000..8_000).contains(&small), "{small}");
        assert_eq!((weighted.min(), weighted.max()), (10, 20));
    }
}
