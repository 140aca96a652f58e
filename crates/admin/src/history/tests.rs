//! The history as a time line.

use super::*;

/// A multiple of 60, so that minutes are easy to see.
const START: u64 = 1_800_000_000;

fn leg(name: &str, sent_bps: f64, outage_s: Option<f64>) -> LegReport {
    let interface = (name != "terrestrial").then(|| "sat0".to_owned());
    LegReport { name: name.into(), interface, sent_bps, outage_s, flows: 3, ..LegReport::default() }
}

fn record(history: &mut History, now: u64, legs: &[LegReport]) {
    let gain = Gain { ratio: Some(12.0), ..Gain::default() };
    history.record(now, &Observation { legs, gain: &gain, flows: 7 });
}

/// A history of `seconds` in which the leg sent as many bit/s as the second's number.
fn counting(seconds: u64) -> History {
    let mut history = History::default();
    for second in 0..seconds {
        record(&mut history, START + second, &[leg("geo", second as f64, None)]);
    }
    history
}

fn outages(history: &History) -> Vec<(f64, Option<f64>)> {
    let from_start = |time: f64| ((time - START as f64) * 10.0).round() / 10.0;
    let of = |outage: Outage| (from_start(outage.began), outage.ended.map(from_start));
    history.since(START, 0, Step::Second).outages.into_iter().map(of).collect()
}

#[test]
fn a_client_with_some_samples_gets_the_later_ones() {
    let history = counting(10);
    let answer = history.since(START + 9, START + 6, Step::Second);
    assert_eq!((answer.now, answer.step), (START + 9, 1));
    assert_eq!(answer.samples.at, [START + 7, START + 8, START + 9]);
    assert_eq!(answer.samples.legs[0].sent, [Some(7), Some(8), Some(9)]);
    assert_eq!(answer.samples.gain, [Some(12.0); 3]);
    assert_eq!(answer.samples.flows, [7; 3]);
    assert!(history.since(START + 9, START + 9, Step::Second).samples.at.is_empty());
}

#[test]
fn a_minute_is_the_mean_of_its_seconds() {
    let answer = counting(181).since(START, 0, Step::Minute);
    assert_eq!(answer.samples.at, [START, START + 60, START + 120]);
    // The mean of 0..=59 is 29.5.
    assert_eq!(answer.samples.legs[0].sent, [Some(30), Some(90), Some(150)]);
    assert_eq!(answer.samples.legs[0].flows, [Some(3); 3]);
}

#[test]
fn a_quarter_of_an_hour_and_a_day_are_kept() {
    let history = counting(2 * 86_400);
    let end = START + 2 * 86_400 - 1;
    let seconds = history.since(end, 0, Step::Second).samples.at;
    assert_eq!((seconds.len(), seconds[0]), (SECONDS, end + 1 - SECONDS as u64));
    let minutes = history.since(end, 0, Step::Minute).samples.at;
    assert!(minutes.len() <= MINUTES && minutes.len() >= MINUTES - 1, "{}", minutes.len());
    assert_eq!(minutes.last(), Some(&(end + 1 - 120)));
}

#[test]
fn after_a_pause_older_samples_are_gone() {
    let mut history = counting(10);
    record(&mut history, START + 5000, &[leg("geo", 1.0, None)]);
    assert_eq!(history.since(0, 0, Step::Second).samples.at, [START + 5000]);
    assert_eq!(history.since(0, 0, Step::Minute).samples.at, [START]);
    record(&mut history, START + 90_000, &[leg("geo", 1.0, None)]);
    assert_eq!(history.since(0, 0, Step::Minute).samples.at, [START + 4980]);
}

#[test]
fn a_clock_that_is_set_back_leaves_no_future() {
    let mut history = counting(130);
    record(&mut history, START + 65, &[leg("geo", 1.0, None)]);
    let seconds = history.since(0, 0, Step::Second).samples.at;
    assert_eq!(seconds, (START..=START + 65).collect::<Vec<_>>());
    assert_eq!(history.since(0, 0, Step::Minute).samples.at, [START]);
    record(&mut history, START + 120, &[leg("geo", 1.0, None)]);
    assert_eq!(history.since(0, 0, Step::Minute).samples.at, [START, START + 60]);
}

#[test]
fn outages_too_are_forgotten_where_they_lie_in_the_future() {
    let mut history = History::default();
    for (second, silent) in [(10, Some(5.0)), (20, None), (30, Some(5.0)), (31, None)] {
        record(&mut history, START + second, &[leg("geo", 0.0, silent)]);
    }
    assert_eq!(outages(&history), [(5.0, Some(20.0)), (25.0, Some(31.0))]);
    record(&mut history, START + 12, &[leg("geo", 0.0, None)]);
    assert_eq!(outages(&history), [(5.0, Some(12.0))]);
}

#[test]
fn a_leg_that_came_later_has_nothing_before() {
    let mut history = counting(2);
    record(&mut history, START + 2, &[leg("geo", 2.0, None), leg("leo", 5.0, None)]);
    record(&mut history, START + 3, &[leg("leo", 6.0, None)]);
    let legs = history.since(0, 0, Step::Second).samples.legs;
    assert_eq!(legs[0].sent, [Some(0), Some(1), Some(2), None]);
    assert_eq!(legs[1].sent, [None, None, Some(5), Some(6)]);
    assert!(legs.iter().all(|leg| leg.srtt.len() == 4 && leg.satellite));
}

#[test]
fn more_legs_than_there_can_be_are_left_out() {
    let legs: Vec<_> = (0..20).map(|number| leg(&format!("leg{number}"), 1.0, Some(1.0))).collect();
    let mut history = History::default();
    record(&mut history, START, &legs);
    assert_eq!(history.since(0, 0, Step::Second).samples.legs.len(), LEGS);
    assert_eq!(outages(&history).len(), LEGS);
}

#[test]
fn an_outage_begins_when_something_was_last_heard() {
    let mut history = counting(10);
    for second in 10..15 {
        record(&mut history, START + second, &[leg("geo", 0.0, Some(second as f64 - 7.4))]);
    }
    assert_eq!(outages(&history), [(7.4, None)]);
    record(&mut history, START + 15, &[leg("geo", 0.0, None)]);
    assert_eq!(outages(&history), [(7.4, Some(15.0))]);
    // Who knows that it has ended is not told again.
    assert_eq!(history.since(START + 20, START + 16, Step::Second).outages, []);
    let silent = history.since(START + 20, 0, Step::Second).samples.legs[0].outage.clone();
    assert_eq!(&silent[9..12], [None, Some(2.6), Some(3.6)]);
}

#[test]
fn arrivals_between_two_samples_make_two_outages() {
    let mut history = History::default();
    record(&mut history, START + 10, &[leg("geo", 0.0, Some(10.0))]);
    record(&mut history, START + 11, &[leg("geo", 0.0, Some(3.0))]);
    record(&mut history, START + 12, &[leg("geo", 0.0, Some(4.0))]);
    assert_eq!(outages(&history), [(0.0, Some(8.0)), (8.0, None)]);
}

#[test]
fn an_outage_that_is_found_again_is_the_same_one() {
    let mut history = History::default();
    record(&mut history, START + 10, &[leg("geo", 0.0, Some(10.0))]);
    record(&mut history, START + 11, &[leg("geo", 0.0, None)]);
    record(&mut history, START + 12, &[leg("geo", 0.0, Some(12.0))]);
    assert_eq!(outages(&history), [(0.0, None)]);
}

#[test]
fn an_outage_that_has_lasted_longer_than_was_thought_is_one() {
    let mut history = History::default();
    record(&mut history, START + 10, &[leg("geo", 0.0, Some(3.0))]);
    record(&mut history, START + 11, &[leg("geo", 0.0, Some(11.0))]);
    assert_eq!(outages(&history), [(7.0, None)]);
}

#[test]
fn the_outage_of_a_leg_that_is_gone_has_ended() {
    let mut history = History::default();
    record(&mut history, START + 10, &[leg("geo", 0.0, Some(4.0))]);
    record(&mut history, START + 11, &[leg("leo", 0.0, None)]);
    assert_eq!(outages(&history), [(6.0, Some(11.0))]);
}

#[test]
fn the_last_thousand_outages_are_kept() {
    let mut history = History::default();
    for number in 0..1200 {
        record(&mut history, START + 10 * number, &[leg("geo", 0.0, Some(3.0))]);
        record(&mut history, START + 10 * number + 1, &[leg("geo", 0.0, None)]);
    }
    let outages = outages(&history);
    assert_eq!((outages.len(), outages[0].0), (1000, 1997.0));
}

#[test]
fn the_next_process_goes_on_where_this_one_ended() {
    let mut history = counting(200);
    record(&mut history, START + 200, &[leg("geo", 1e6, Some(3.0)), leg("terrestrial", 5.0, None)]);
    let json = serde_json::to_string(&history.save()).unwrap();
    let mut restored = History::restore(&serde_json::from_str(&json).unwrap());
    assert_eq!(restored.save(), history.save());
    for history in [&mut history, &mut restored] {
        for second in 201..300 {
            record(history, START + second, &[leg("geo", 2e6, Some(second as f64 - 197.0))]);
        }
    }
    assert_eq!(restored.save(), history.save());
    assert_eq!(outages(&restored), [(197.0, None)]);
}

#[test]
fn a_truncated_snapshot_is_restored_as_far_as_possible() {
    let mut saved = counting(100).save();
    saved.seconds.gain.truncate(3);
    saved.seconds.legs[0].sent.truncate(50);
    saved.seconds.at[99] = 0;
    saved.outages = vec![Outage { leg: "geo".into(), began: 0.0, ended: Some(1.0) }; 5000];
    let restored = History::restore(&saved);
    assert_eq!(restored.seconds.len(), 99);
    assert_eq!(restored.save().seconds.legs[0].sent[50], None);
    assert_eq!(restored.save().outages.len(), 1000);
}

#[test]
fn the_answer_to_all_of_it_is_small() {
    let legs: Vec<_> = (0..LEGS).map(|number| leg(&format!("leg{number}"), 123_456_789.0, None)).collect();
    let mut history = History::default();
    for second in 0..SECONDS as u64 {
        record(&mut history, START + second, &legs);
    }
    let bytes = serde_json::to_vec(&history.since(0, 0, Step::Second)).unwrap().len();
    assert!(bytes < 500_000, "{bytes}");
    let bytes =
        serde_json::to_vec(&history.since(0, START + SECONDS as u64 - 2, Step::Second)).unwrap().len();
    assert!(bytes < 2000, "{bytes}");
}
