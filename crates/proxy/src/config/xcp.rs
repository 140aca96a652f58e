//! Legs with `congestion = "xcp"` or `"p-xcp"`: their routers share out a capacity that must be known.

use bentpipe_config::Problem;
use bentpipe_kernel::router::Variant;

use super::SatelliteLeg;

/// Checks that an XCP leg has a rate.
pub(super) fn check(leg: &SatelliteLeg) -> Result<(), Problem> {
    if xcp_variant(leg).is_none() || leg.rate.is_some() {
        return Ok(());
    }
    let message = format!(
        "congestion = \"{}\" shares out a capacity that must be known; add rate = \"…\", what the link carries, for example \
         \"10Mbit/s\"",
        leg.congestion()
    );
    Err(Problem::of("rate", message))
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
    use super::super::Config;

    fn config(leg: &str) -> Result<Config, String> {
        let text = format!("[legs.geo]\ninterface = \"sat0\"\n{leg}");
        Config::parse("x", &text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_capacity_is_required() {
        for congestion in ["xcp", "p-xcp"] {
            let leg = format!("congestion = \"{congestion}\"\n");
            let error = config(&leg).unwrap_err();
            assert!(error.contains("legs.geo.rate: ") && error.contains("add rate"), "{error}");
            assert!(config(&format!("{leg}rate = \"2Mbit/s\"\n")).is_ok());
        }
        assert!(config("congestion = \"bbr\"\n").is_ok());
    }
}
