//! The summary at the end: a line for each direction of the link, and one for each agent at its ends.

use std::fmt::Write as _;

use bentpipe_link::agent::ack_filter::AckFilterCounters;
use bentpipe_link::agent::arq::ArqCounters;
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckCounters;
use bentpipe_link::agent::snoop::SnoopCounters;
use bentpipe_link::agent::xcp::XcpCounters;
use bentpipe_link::agent::{AgentReport, LinkEndReport};
use bentpipe_link::{Cause, Counters, ImpairmentCounters};

/// The counters of one direction, which carries `unit`: packets or frames. `arrived` of them have come to its
/// end; the model counts as delivered what will.
pub(super) fn direction(
    name: &str,
    unit: &str,
    counters: &Counters,
    arrived: u64,
    impaired: &ImpairmentCounters,
) -> String {
    let mut text = format!("link: {name:<16} {} {unit} sent, {arrived} delivered", counters.offered);
    match counters.delivered.saturating_sub(arrived) {
        0 => {}
        left => {
            let _ = write!(text, ", {left} still queued or on the way");
        }
    }
    for cause in Cause::ALL {
        match counters.dropped(cause) {
            0 => {}
            dropped => {
                let _ = write!(text, ", {dropped} lost: {cause}");
            }
        }
    }
    let ImpairmentCounters { held_back, duplicated, corrupted } = *impaired;
    for part in occurred(&[(held_back, "held back"), (duplicated, "duplicated"), (corrupted, "corrupted")]) {
        let _ = write!(text, ", {part}");
    }
    text + "\n"
}

/// The counters of the far end's agents and of the command's; nothing where there are none.
pub(super) fn link_ends([far, near]: &[LinkEndReport; 2]) -> String {
    let agents = far.agents.iter().chain(&near.agents).map(agent);
    let arqs = [("ARQ, far end", far.arq), ("ARQ, this end", near.arq)];
    agents.chain(arqs.iter().filter_map(|(name, counters)| Some(arq(name, &(*counters)?)))).collect()
}

fn agent(report: &AgentReport) -> String {
    match report {
        AgentReport::Snoop(counters) => snoop(counters),
        AgentReport::DelayedDupAck(counters) => delayed_dup_ack(counters),
        AgentReport::AckFilter(counters) => ack_filter(counters),
        AgentReport::Xcp(counters) => xcp(counters),
    }
}

fn xcp(counters: &XcpCounters) -> String {
    let XcpCounters { headers, lowered, intervals, .. } = *counters;
    line(
        "XCP",
        &[(headers, "congestion headers"), (lowered, "of them lowered"), (intervals, "control intervals")],
    )
}

fn snoop(counters: &SnoopCounters) -> String {
    let SnoopCounters { cached, not_cached, retransmitted, timed_out, suppressed, .. } = *counters;
    let SnoopCounters { sack_hidden, yielded, flows_passed, most_held_bytes, .. } = *counters;
    let SnoopCounters { queue_dropped, most_queued_bytes, .. } = *counters;
    line(
        "snoop",
        &[
            (cached, "segments cached"),
            (retransmitted, "sent again"),
            (timed_out, "timeouts"),
            (suppressed, "duplicate ACKs suppressed"),
            (sack_hidden, "ACKs without their SACK blocks"),
            (yielded, "losses left to the sender for congestion"),
            (not_cached, "segments without room"),
            (flows_passed, "segments of connections without room"),
            (queue_dropped, "dropped by its full queue"),
            (most_held_bytes, "bytes held at most"),
            (most_queued_bytes, "bytes in its queue at most"),
        ],
    )
}

fn delayed_dup_ack(counters: &DelayedDupAckCounters) -> String {
    let DelayedDupAckCounters { held, released, crowded_out, dropped, sack_hidden, .. } = *counters;
    let DelayedDupAckCounters { flows_passed, most_held_bytes, .. } = *counters;
    line(
        "delayed dup-ACKs",
        &[
            (held, "held back"),
            (dropped, "of them dropped"),
            (released, "released late"),
            (crowded_out, "released early for lack of room"),
            (sack_hidden, "ACKs without their SACK blocks"),
            (flows_passed, "ACKs of connections without room"),
            (most_held_bytes, "bytes held at most"),
        ],
    )
}

fn ack_filter(counters: &AckFilterCounters) -> String {
    let AckFilterCounters { passed, held, released, superseded, flows_passed, most_held_bytes, .. } =
        *counters;
    line(
        "ACK filter",
        &[
            (passed, "ACKs passed at once"),
            (held, "had to wait"),
            (superseded, "of them dropped for newer ones"),
            (released, "sent later"),
            (flows_passed, "ACKs of connections without room"),
            (most_held_bytes, "bytes held at most"),
        ],
    )
}

fn arq(name: &str, counters: &ArqCounters) -> String {
    let ArqCounters { packets, retransmitted, timed_out, given_up, refused, crowded_out, .. } = *counters;
    let ArqCounters { duplicates, skipped, reports_sent, most_held_bytes, .. } = *counters;
    line(
        name,
        &[
            (packets, "packets sent"),
            (retransmitted, "sent again"),
            (timed_out, "sent again because no report came"),
            (given_up, "given up"),
            (refused, "refused by the full queue"),
            (crowded_out, "given up for lack of room"),
            (duplicates, "received twice"),
            (skipped, "no longer waited for"),
            (reports_sent, "reports"),
            (most_held_bytes, "bytes held at most"),
        ],
    )
}

fn line(name: &str, counts: &[(u64, &str)]) -> String {
    let parts: Vec<String> = occurred(counts).collect();
    let parts = if parts.is_empty() { "nothing to do".to_owned() } else { parts.join(", ") };
    format!("link: {name:<16} {parts}\n")
}

/// The counters that are not zero.
fn occurred(counts: &[(u64, &str)]) -> impl Iterator<Item = String> {
    counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direction_names_only_the_causes_that_occurred() {
        let mut counters = Counters { offered: 10, delivered: 7, ..Counters::default() };
        counters.dropped.packet_error = 3;
        let text = direction("to the command", "packets", &counters, 7, &ImpairmentCounters::default());
        assert_eq!(text, "link: to the command   10 packets sent, 7 delivered, 3 lost: packet error\n");
        let impaired = ImpairmentCounters { held_back: 2, duplicated: 0, corrupted: 1 };
        let text = direction("to the command", "packets", &counters, 7, &impaired);
        assert!(text.ends_with("3 lost: packet error, 2 held back, 1 corrupted\n"), "{text}");
    }

    #[test]
    fn a_packet_that_has_not_arrived_is_not_delivered() {
        let counters = Counters { offered: 3, delivered: 3, ..Counters::default() };
        let text = direction("to the command", "packets", &counters, 0, &ImpairmentCounters::default());
        assert_eq!(
            text,
            "link: to the command   3 packets sent, 0 delivered, 3 still queued or on the way\n"
        );
    }

    #[test]
    fn an_agent_reports_only_its_nonzero_counters() {
        let counters = SnoopCounters { cached: 40, retransmitted: 2, suppressed: 5, ..Default::default() };
        let far = LinkEndReport { agents: vec![AgentReport::Snoop(counters)], arq: None };
        let idle = AgentReport::DelayedDupAck(DelayedDupAckCounters::default());
        let near = LinkEndReport { agents: vec![idle], arq: None };
        assert_eq!(
            link_ends(&[far, near]),
            "link: snoop            40 segments cached, 2 sent again, 5 duplicate ACKs suppressed\n\
             link: delayed dup-ACKs nothing to do\n"
        );
        assert_eq!(link_ends(&Default::default()), "");
        let paced =
            SnoopCounters { queue_dropped: 3, most_held_bytes: 70, most_queued_bytes: 60, ..counters };
        let far = LinkEndReport { agents: vec![AgentReport::Snoop(paced)], arq: None };
        let text = link_ends(&[far, LinkEndReport::default()]);
        assert!(
            text.ends_with(
                ", 3 dropped by its full queue, 70 bytes held at most, 60 bytes in its queue at most\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn the_arqs_of_both_ends_are_told_apart() {
        let report = |packets| LinkEndReport {
            agents: Vec::new(),
            arq: Some(ArqCounters { packets, ..Default::default() }),
        };
        let text = link_ends(&[report(3), report(0)]);
        assert!(text.starts_with("link: ARQ, far end     3 packets sent"), "{text}");
        assert!(text.ends_with("link: ARQ, this end    nothing to do\n"), "{text}");
    }
}
