//! What holds for any segments.

use std::collections::BTreeSet;
use std::time::Duration;

use bentpipe_link::agent::delayed_dup_ack::{DelayedDupAck, DelayedDupAckConfig};
use bentpipe_link::agent::{Agent, AgentReport, Outbox};
use bentpipe_units::Time;
use proptest::prelude::*;

use crate::delayed_dup_ack::terminal::{ACK, FIN, RST, SYN, Segment};

/// Numbers that meet each other, with a wrap among them.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => (0..6u32).prop_map(|step| (step * 1000).wrapping_sub(3000)), 1 => any::<u32>()]
}

fn segment() -> impl Strategy<Value = Segment> {
    let flags = prop_oneof![
        20 => Just(ACK), 1 => Just(ACK | FIN), 1 => Just(SYN), 1 => Just(RST), 1 => any::<u8>(),
    ];
    let ends = (0..3u16, 0..2u16);
    let sack = prop::collection::vec((number(), number()), 0..4);
    let payload = prop_oneof![5 => Just(0u32), 1 => 0..2000u32];
    (ends, number(), number(), payload, 0..3u16, flags, sack).prop_map(
        |((source, destination), seq, ack, payload, window, flags, sack)| Segment {
            id: 0,
            source,
            destination,
            seq,
            ack,
            payload,
            window,
            flags,
            sack,
            says_more: false,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn each_segment_comes_out_once_unless_it_is_a_duplicate_ack_that_is_dropped(
        segments in prop::collection::vec((segment(), any::<bool>(), 0..200u64), 1..300),
        delay_ms in 0..500u64,
        flows in 0..5usize,
        hide_sack in any::<bool>(),
    ) {
        let config = DelayedDupAckConfig { delay: Duration::from_millis(delay_ms), flows, hide_sack };
        let mut agent = DelayedDupAck::new(&config);
        let mut out = Outbox::default();
        let mut now = Time::ZERO;
        for (id, (segment, is_outbound, gap)) in segments.iter().enumerate() {
            let next = now + Duration::from_millis(*gap);
            while agent.wake_at() <= next {
                now = now.max(agent.wake_at());
                agent.on_timer(now, &mut out);
            }
            now = next;
            let segment = segment.clone().id(id);
            match is_outbound {
                true => agent.outbound(now, segment, &mut out),
                false => agent.inbound(now, segment, &mut out),
            }
        }
        while agent.wake_at() < Time::MAX {
            now = now.max(agent.wake_at());
            agent.on_timer(now, &mut out);
        }
        let AgentReport::DelayedDupAck(counters) = agent.report() else { panic!("another report") };
        prop_assert_eq!((agent.held_bytes(), counters.flows <= flows as u64), (0, true));
        prop_assert_eq!(counters.held, counters.released + counters.dropped + counters.crowded_out);

        let mut came = BTreeSet::new();
        for (list, is_outbound) in [(&out.to_link, true), (&out.to_host, false)] {
            for segment in list {
                prop_assert!(came.insert(segment.id), "twice: {:?}", segment);
                let (original, outbound, _) = &segments[segment.id];
                prop_assert_eq!(*outbound, is_outbound);
                let changed = Segment { id: 0, ..segment.clone() };
                let hidden = Segment { sack: Vec::new(), ..original.clone() };
                prop_assert!(changed == *original || (hide_sack && is_outbound && changed == hidden));
            }
        }
        let missing: Vec<_> = (0..segments.len()).filter(|id| !came.contains(id)).collect();
        prop_assert_eq!(missing.len() as u64, counters.dropped);
        for id in missing {
            let (segment, is_outbound, _) = &segments[id];
            let is_pure_ack = segment.payload == 0 && segment.flags & (ACK | SYN | FIN | RST) == ACK;
            prop_assert!(*is_outbound && is_pure_ack, "dropped: {:?}", segment);
        }
        // The other way nothing changes its place.
        prop_assert!(out.to_host.iter().map(|segment| segment.id).is_sorted());
    }
}
