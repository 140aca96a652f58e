//! How much of a shared link one connection gets, compared with another.

use std::fmt;

use serde::Deserialize;

/// The weight of a connection among those that share a leg, 1 to 100: one of weight 4 gets four times what
/// one of weight 1 gets, where the leg's congestion control has weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "i64")]
pub struct Weight(u16);

impl Weight {
    /// The greatest weight.
    pub const MAX: Self = Self(100);

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    /// 1, the weight of a connection without a configured one.
    fn default() -> Self {
        Self(1)
    }
}

impl TryFrom<i64> for Weight {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match u16::try_from(number) {
            Ok(weight) if (1..=Self::MAX.0).contains(&weight) => Ok(Self(weight)),
            _ => Err(format!("{number} is not a weight; write a whole number from 1 to {}", Self::MAX)),
        }
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_one_to_a_hundred_and_one_by_default() {
        for number in [1, 4, 100] {
            assert_eq!(Weight::try_from(number).map(|weight| i64::from(weight.get())), Ok(number));
        }
        for number in [i64::MIN, -1, 0, 101, 65_537, i64::MAX] {
            let error = Weight::try_from(number).unwrap_err();
            assert!(error.starts_with(&format!("{number} is not a weight; write")), "{error}");
        }
        assert_eq!(Weight::try_from(1), Ok(Weight::default()));
    }
}
