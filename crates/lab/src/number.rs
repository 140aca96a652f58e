//! Numbers in JSON, which has none for infinity: those that are not finite are the texts `inf`, `-inf` and
//! `NaN`. For fields with `#[serde(with = "crate::number")]`.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Read {
    Finite(f64),
    Other(String),
}

pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match value.is_finite() {
        true => serializer.serialize_f64(*value),
        false => serializer.collect_str(value),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match Read::deserialize(deserializer)? {
        Read::Finite(value) => Ok(value),
        Read::Other(text) => text.parse().map_err(D::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Held(#[serde(with = "super")] f64);

    #[test]
    fn a_number_comes_back_from_json_finite_or_not() {
        for value in [0.0, -1.5, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let json = serde_json::to_string(&Held(value)).unwrap();
            let back: Held = serde_json::from_str(&json).unwrap();
            assert_eq!(back.0.total_cmp(&value), std::cmp::Ordering::Equal, "{json}");
        }
        assert!(serde_json::from_str::<Held>("\"a word\"").is_err());
    }
}
