use super::*;

fn sent(bytes: u64) -> Totals {
    Totals { moved: Moved { sent: bytes, received: 0 }, segments: bytes / 1000, ..Totals::default() }
}

fn active(sent_bps: u64, srtt_us: u64) -> Share {
    Share { active: 1, timed: 1, srtt_us, sent_bps, ..Share::default() }
}

fn finding(news: Totals, before: Share, after: Share) -> Finding {
    Finding { news, before, after, look: Observation::default(), min_rtt: None, gain: None, is_last: false }
}

#[test]
fn a_leg_keeps_its_numbers_under_its_name_and_its_kind() {
    let leg_stats = LegStatsTable::default();
    let leg = leg_stats.leg(true, "sky");
    assert!(Arc::ptr_eq(&leg, &leg_stats.leg(true, "sky")));
    leg_stats.leg(false, "terrestrial");
    // An operator may call a satellite leg so.
    let satellite = leg_stats.leg(true, "terrestrial");
    assert!(!Arc::ptr_eq(&satellite, &leg_stats.leg(false, "terrestrial")));
    leg_stats.leg(true, "sea");
    let legs = leg_stats.legs();
    let order: Vec<(&str, bool)> = legs.iter().map(|leg| (leg.name(), leg.is_satellite())).collect();
    assert_eq!(order, [("sea", true), ("sky", true), ("terrestrial", true), ("terrestrial", false)]);
}

#[test]
fn shares_are_replaced_and_go_with_their_connection() {
    let leg = LegStats::new(true, "sky");
    let now = Instant::now();
    leg.join();
    leg.join();
    leg.note(now, &finding(sent(1000), Share::default(), active(8000, 100)));
    leg.note(now, &finding(sent(2000), Share::default(), active(16_000, 300)));
    leg.note(now, &finding(sent(500), active(8000, 100), active(4000, 200)));
    let figures = leg.figures(now);
    assert_eq!((figures.flows, figures.shares.active, figures.totals.moved.sent), (2, 2, 3500));
    assert_eq!((figures.sent_bps, figures.srtt), (20_000.0, Some(Duration::from_micros(250))));
    leg.leave(active(4000, 200));
    leg.leave(active(16_000, 300));
    let figures = leg.figures(now);
    assert_eq!((figures.flows, figures.shares, figures.srtt), (0, Share::default(), None));
    assert_eq!(figures.totals.moved.sent, 3500, "what was done is not undone");
}

#[test]
fn a_short_connections_bytes_count_for_a_second() {
    let leg = LegStats::new(true, "sky");
    let now = Instant::now();
    leg.join();
    let last = Finding { is_last: true, ..finding(sent(1_000_000), Share::default(), Share::default()) };
    leg.note(now, &last);
    leg.leave(Share::default());
    assert_eq!(leg.figures(now).sent_bps, 8e6);
    assert_eq!(leg.figures(now + Duration::from_millis(900)).sent_bps, 8e6);
    assert_eq!(leg.figures(now + Duration::from_millis(1100)).sent_bps, 0.0);
}

#[test]
fn loss_is_that_of_the_last_ten_seconds() {
    let leg = LegStats::new(true, "sky");
    let start = Instant::now();
    let at = |second: u64| start + Duration::from_secs(second);
    assert_eq!(leg.state().loss(start), None, "nothing was sent");
    for second in 0..10 {
        let news = Totals { segments: 100, retransmissions: 10, ..Totals::default() };
        leg.note(at(second), &finding(news, Share::default(), Share::default()));
    }
    assert_eq!(leg.state().loss(at(9)), Some(0.1));
    for second in 10..30 {
        let news = Totals { segments: 100, ..Totals::default() };
        leg.note(at(second), &finding(news, Share::default(), Share::default()));
    }
    assert_eq!(leg.state().loss(at(29)), Some(0.0));
    assert_eq!(leg.state().loss(at(60)), None, "nothing was sent lately");
    // SYNs that are sent again are no segments with data.
    let news = Totals { segments: 1, retransmissions: 5, ..Totals::default() };
    leg.note(at(100), &finding(news, Share::default(), Share::default()));
    assert_eq!(leg.state().loss(at(100)), Some(1.0));
}

#[test]
fn a_predecessors_retransmissions_are_no_new_losses() {
    let leg = LegStats::new(true, "sky");
    let now = Instant::now();
    leg.note(now, &finding(sent(1_000_000), Share::default(), Share::default()));
    let before = Totals { retransmissions: 900, ..sent(9_000_000) };
    leg.inherit(before);
    assert_eq!(leg.figures(now).totals, Totals { retransmissions: 900, ..sent(10_000_000) });
    leg.note(now, &finding(sent(1_000_000), Share::default(), Share::default()));
    assert_eq!(leg.state().loss(now), Some(0.0));
}

#[test]
fn the_shortest_round_trip_is_one_of_the_last_seconds() {
    let mut shortest = Shortest::default();
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let ms = Duration::from_millis;
    assert_eq!(shortest.get(start), None);
    shortest.note(at(0), ms(50));
    shortest.note(at(1000), ms(40));
    shortest.note(at(1900), ms(60));
    assert_eq!(shortest.get(at(1900)), Some(ms(40)));
    shortest.note(at(2500), ms(60));
    assert_eq!(shortest.get(at(2500)), Some(ms(40)));
    shortest.note(at(4600), ms(70));
    assert_eq!(shortest.get(at(4600)), Some(ms(60)));
    assert_eq!(shortest.get(at(9000)), None, "nobody has been looked at for long");
}
