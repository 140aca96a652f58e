//! Legs with `congestion = "xcp"` or `"p-xcp"`: their routers share out a capacity that must be known.

use bentpipe_kernel::router::Variant;

use super::{Config, SatelliteLeg};

/// The first XCP leg without a rate.
pub(crate) fn contradiction(config: &Config) -> Option<String> {
    let lacks_rate = |(_, leg): &(&String, &SatelliteLeg)| xcp_variant(leg).is_some() && leg.rate.is_none();
    config.legs.iter().find(lacks_rate).map(|(name, leg)| {
        let congestion = leg.congestion();
        format!(
            "leg {name} has congestion = \"{congestion}\", which shares out a capacity that must be known; add rate = \"…\", what \
             the link carries, for example \"10Mbit/s\""
        )
    })
}

/// The variant of the XCP router that the leg's congestion control needs, if any.
pub(crate) fn xcp_variant(leg: &SatelliteLeg) -> Option<Variant> {
    match leg.congestion() {
        "xcp" => Some(Variant::Xcp),
        "p-xcp" => Some(Variant::PXcp),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(leg: &str) -> Result<Config, String> {
        let text = format!("[legs.geo]\ninterface = \"sat0\"\n{leg}");
        Config::parse("x", &text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_capacity_is_required() {
        for congestion in ["xcp", "p-xcp"] {
            let leg = format!("congestion = \"{congestion}\"\n");
            let error = config(&leg).unwrap_err();
            assert!(error.contains("leg geo") && error.contains("rate"), "{error}");
            assert!(config(&format!("{leg}rate = \"2Mbit/s\"\n")).is_ok());
        }
        assert!(config("congestion = \"bbr\"\n").is_ok());
    }
}
