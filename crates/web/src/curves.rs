//! Samples of a run, as many as a page can draw, however long the run is.

use bentpipe_link::Counters;
use bentpipe_sim::{Observer, RunResult, Scenario};
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::{ByteCount, Time};
use serde::Serialize;

/// The most samples of a curve: more than a screen has columns. When there are more, every second one is
/// dropped, and from then on every second sample is taken.
const MOST_SAMPLES: usize = 4096;
/// Flows, and directions of links, that have curves.
const MOST_CURVES: usize = 8;

/// The curves; every list has a value for each of the times.
#[derive(Debug, Serialize)]
pub(crate) struct Curves<'a> {
    /// Seconds from the start of the run.
    time_s: Vec<f64>,
    /// The first flows.
    flows: Vec<FlowCurves<'a>>,
    /// The first links.
    links: Vec<LinkCurves<'a>>,
    /// Flows of the scenario, with and without curves.
    all_flows: usize,
    /// Links of the scenario, with and without curves.
    all_links: usize,
}

#[derive(Debug, Serialize)]
struct FlowCurves<'a> {
    name: &'a str,
    /// Bytes that the destination's application has received.
    received: Vec<u64>,
    /// Of each connection, from the source on.
    legs: Vec<LegCurves>,
}

#[derive(Debug, Default, Serialize)]
struct LegCurves {
    /// The congestion window, bytes.
    cwnd: Vec<u64>,
    /// Bytes believed to be in the network.
    in_flight: Vec<u64>,
    /// The smoothed round-trip time, seconds.
    srtt_s: Vec<f64>,
    /// Segments sent again so far.
    retransmissions: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct LinkCurves<'a> {
    name: &'a str,
    /// Bytes that wait for the transmitter, from the first node to the second.
    forward: Vec<u64>,
    /// The same from the second to the first.
    reverse: Vec<u64>,
}

/// Takes the samples.
pub(crate) struct Recorder<'a> {
    end: Time,
    progress: &'a mut dyn FnMut(f64),
    time_s: Vec<f64>,
    flows: Vec<(Vec<u64>, Vec<LegCurves>)>,
    links: Vec<[Vec<u64>; 2]>,
    /// The time of the sample that is being taken.
    now: Option<Time>,
    /// Samples so far, also those that are not kept.
    taken: usize,
    /// Every how many samples one is kept.
    stride: usize,
    keeps: bool,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(scenario: &Scenario, progress: &'a mut dyn FnMut(f64)) -> Self {
        let flows = scenario.flows.iter().take(MOST_CURVES);
        let legs = |legs: usize| (0..legs).map(|_| LegCurves::default()).collect();
        Self {
            end: Time::ZERO + scenario.duration,
            progress,
            time_s: Vec::new(),
            flows: flows.map(|flow| (Vec::new(), legs(flow.legs.len()))).collect(),
            links: scenario.links.iter().take(MOST_CURVES).map(|_| Default::default()).collect(),
            now: None,
            taken: 0,
            stride: 1,
            keeps: false,
        }
    }

    /// The curves of the run, whose last values are those of its end.
    pub(crate) fn finish<'s>(self, scenario: &'s Scenario, run: &RunResult) -> Curves<'s> {
        let mut time_s = self.time_s;
        let mut flows = self.flows;
        let mut links = self.links;
        // A run ends between two samples. What was received is known; the rest stays as it was.
        if !time_s.is_empty() {
            time_s.push(run.seconds);
            for ((received, legs), result) in flows.iter_mut().zip(&run.flows) {
                received.push(result.bytes);
                for (leg, result) in legs.iter_mut().zip(&result.legs) {
                    repeat_last(&mut leg.cwnd);
                    repeat_last(&mut leg.in_flight);
                    repeat_last(&mut leg.srtt_s);
                    leg.retransmissions.push(result.retransmissions);
                }
            }
            links.iter_mut().flatten().for_each(repeat_last);
        }
        let flow = |((received, legs), name): ((Vec<u64>, Vec<LegCurves>), &'s String)| FlowCurves {
            name,
            received,
            legs,
        };
        let link =
            |([forward, reverse], name): ([Vec<u64>; 2], &'s String)| LinkCurves { name, forward, reverse };
        Curves {
            time_s,
            flows: flows.into_iter().zip(scenario.flows.iter().map(|flow| &flow.name)).map(flow).collect(),
            links: links.into_iter().zip(scenario.links.iter().map(|link| &link.name)).map(link).collect(),
            all_flows: scenario.flows.len(),
            all_links: scenario.links.len(),
        }
    }

    /// A value of a sample of this time comes. All values of a sample come one after the other.
    fn begin(&mut self, now: Time) {
        if self.now == Some(now) {
            return;
        }
        self.now = Some(now);
        self.keeps = self.taken.is_multiple_of(self.stride);
        self.taken += 1;
        if !self.keeps {
            return;
        }
        if self.time_s.len() == MOST_SAMPLES {
            self.halve();
            self.stride *= 2;
        }
        self.time_s.push(now.as_secs_f64());
    }

    /// Drops every second sample.
    fn halve(&mut self) {
        keep_even(&mut self.time_s);
        for (received, legs) in &mut self.flows {
            keep_even(received);
            for leg in legs {
                keep_even(&mut leg.cwnd);
                keep_even(&mut leg.in_flight);
                keep_even(&mut leg.srtt_s);
                keep_even(&mut leg.retransmissions);
            }
        }
        self.links.iter_mut().flatten().for_each(keep_even);
    }
}

fn keep_even<T>(values: &mut Vec<T>) {
    let mut index = 0;
    values.retain(|_| {
        index += 1;
        index % 2 == 1
    });
}

fn repeat_last<T: Copy>(values: &mut Vec<T>) {
    if let Some(&last) = values.last() {
        values.push(last);
    }
}

impl Observer for Recorder<'_> {
    fn progress(&mut self, now: Time) -> bool {
        (self.progress)(now.as_secs_f64() / self.end.as_secs_f64());
        true
    }

    fn wants_samples(&self) -> bool {
        true
    }

    fn variables(&mut self, now: Time, flow: usize, leg: usize, tcp: &Variables, done: &Statistics) {
        self.begin(now);
        if let (true, Some((_, legs))) = (self.keeps, self.flows.get_mut(flow)) {
            legs[leg].cwnd.push(tcp.cwnd);
            legs[leg].in_flight.push(tcp.in_flight);
            legs[leg].srtt_s.push(tcp.srtt.as_secs_f64());
            legs[leg].retransmissions.push(done.retransmissions);
        }
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        self.begin(now);
        if let (true, Some((received, _))) = (self.keeps, self.flows.get_mut(flow)) {
            received.push(bytes);
        }
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, _: &Counters) {
        self.begin(now);
        if let (true, Some(queues)) = (self.keeps, self.links.get_mut(link)) {
            queues[usize::from(!forward)].push(backlog.get());
        }
    }
}

#[cfg(test)]
mod tests {
    fn curves(duration: &str) -> serde_json::Value {
        let text = format!(
            r#"
duration = "{duration}"
[[link]]
name = "satellite"
between = ["gateway", "client"]
rate = "64kbit/s"
delay = "300ms"
[[flow]]
name = "download"
from = "gateway"
to = "client"
"#
        );
        let document = crate::run(&text, 1, &mut |_| ()).unwrap();
        serde_json::from_str::<serde_json::Value>(&document).unwrap()["curves"].clone()
    }

    /// All lists of numbers in the curves.
    fn lists(value: &serde_json::Value) -> Vec<&Vec<serde_json::Value>> {
        let children: Vec<&serde_json::Value> = match value {
            serde_json::Value::Array(values) if values.iter().all(serde_json::Value::is_number) => {
                return vec![values];
            }
            serde_json::Value::Array(values) => values.iter().collect(),
            serde_json::Value::Object(fields) => fields.values().collect(),
            _ => Vec::new(),
        };
        children.into_iter().flat_map(lists).collect()
    }

    #[test]
    fn every_curve_has_a_value_for_each_time_in_short_runs_and_in_long_ones() {
        for (duration, samples) in [("10s", 102), ("409500ms", 4097), ("409600ms", 2050), ("1h", 2252)] {
            let curves = curves(duration);
            let lists = lists(&curves);
            assert_eq!(lists.len(), 8, "times, five of the flow, two of the link");
            let lengths: Vec<usize> = lists.iter().map(|list| list.len()).collect();
            assert!(lengths.iter().all(|length| *length == samples), "{duration}: {lengths:?}");
            let times: Vec<f64> =
                curves["time_s"].as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
            assert!(times.is_sorted(), "{duration}");
            let steps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let even = &steps[..steps.len() - 1];
            assert!(even.iter().all(|step| (step - even[0]).abs() < 1e-6), "{duration}");
        }
    }
}
