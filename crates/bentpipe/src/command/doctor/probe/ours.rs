//! What the daemon that runs on the gateway has there. It is not copied: the daemon in the copy makes its
//! own.

/// Its tables of nftables, whose rules take SYNs out of their way on purpose.
const TABLES: [&str; 2] = ["inet bentpipe", "inet bentpipe_held"];
/// Its routing tables.
const ROUTES: [&str; 3] = ["25200", "25202", "25203"];
/// How far its routing rule that jumps over the others jumps.
const JUMP: u32 = 3;

/// Whether a table of nftables is the daemon's, by family and name.
pub(super) fn is_table(name: &str) -> bool {
    TABLES.contains(&name)
}

/// Whether a route or a routing rule is the daemon's, by the words with which `ip` lists it.
pub(super) fn is_route_or_rule(words: &[&str]) -> bool {
    let names_table = |pair: &[&str]| ["table", "lookup"].contains(&pair[0]) && ROUTES.contains(&pair[1]);
    words.windows(2).any(names_table) || is_jump(words)
}

/// The jump over the daemon's rules, and the rule at which it ends, which does nothing.
fn is_jump(words: &[&str]) -> bool {
    let number = |text: &str| text.trim_end_matches(':').parse::<u32>().ok();
    match words {
        [from, "from", "all", "iif", "lo", "goto", to] => {
            number(from).zip(number(to)).is_some_and(|(from, to)| from.checked_add(JUMP) == Some(to))
        }
        [_, "from", "all", "nop"] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_routes_of_the_daemon_are_told_from_those_of_others() {
        for line in [
            "62: from all fwmark 0x50000000/0x70000000 lookup 25202",
            "64: from all fwmark 0x20000000/0x70000000 iif lo lookup 25200",
            "66: from all iif lo goto 69",
            "69: from all nop",
            "local default dev lo table 25200 scope host",
        ] {
            assert!(is_route_or_rule(&line.split(' ').collect::<Vec<_>>()), "{line}");
        }
        for line in
            ["66: from all iif lo goto 100", "60: from all iif wan lookup 7", "default dev lo table 2520"]
        {
            assert!(!is_route_or_rule(&line.split(' ').collect::<Vec<_>>()), "{line}");
        }
        assert!(is_table("inet bentpipe_held") && !is_table("ip bentpipe"));
    }
}
