//! Whether the flows that rules snoop have the memory that their legs need.

use bentpipe_kernel::host::Check;
use bentpipe_proxy::Config;

/// Checks the cache, if a rule says `snoop`.
pub(super) fn cache(config: &Config) -> Option<Check> {
    let (name, cache) = ("cache of snooped flows", config.snoop_config()?.cache);
    let wanted = config.usual_snoop_cache();
    if cache >= wanted {
        return Some(Check::pass(
            name,
            format!("{cache}; three bandwidth-delay products of the legs are {wanted}"),
        ));
    }
    let found = format!("snoop.cache = \"{cache}\"; three bandwidth-delay products of the legs are {wanted}");
    Some(Check::fail(name, found, format!("cache = \"{wanted}\", or leave it out")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &str) -> Option<Check> {
        let leg = "[legs.geo]\ninterface = \"sat0\"\nrate = \"10Mbit/s\"\n";
        cache(&Config::parse("x", &format!("{leg}{lines}")).unwrap())
    }

    #[test]
    fn a_cache_is_judged_by_the_legs_if_there_is_a_rule() {
        const RULE: &str = "[[rules]]\naction = \"snoop\"\n";
        assert!(check("[snoop]\ncache = \"1MB\"\n").is_none());
        assert!(check(RULE).unwrap().ok);
        let small = check(&format!("[snoop]\ncache = \"1MB\"\n{RULE}")).unwrap();
        assert!(!small.ok && small.fix.unwrap() == "cache = \"2.25MB\", or leave it out");
        assert!(check(&format!("[snoop]\ncache = \"2.25MB\"\n{RULE}")).unwrap().ok);
    }
}
