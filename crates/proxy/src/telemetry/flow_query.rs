//! Queries the flows of all workers.

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use super::report::FlowReport;

/// How long to wait for the workers' answers.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks a worker for reports of its fastest flows, in one message.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) most: usize,
    answer: Sender<Vec<FlowReport>>,
}

impl Request {
    /// Sends the reports; the requester may have gone.
    pub(crate) fn answer(self, reports: Vec<FlowReport>) {
        let _ = self.answer.send(reports);
    }
}

/// Reports of `most` flows of all workers, the fastest first.
pub(super) fn survey<'a>(workers: impl Iterator<Item = &'a dyn Fn(Request)>, most: usize) -> Vec<FlowReport> {
    let (sender, answers) = mpsc::channel();
    for worker in workers {
        worker(Request { most, answer: sender.clone() });
    }
    // The remaining senders are the workers': the channel closes with the last answer.
    drop(sender);
    put_together(&answers, most, Instant::now() + PATIENCE)
}

fn put_together(answers: &Receiver<Vec<FlowReport>>, most: usize, until: Instant) -> Vec<FlowReport> {
    let mut reports = Vec::new();
    while let Ok(more) = answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
        reports.extend(more);
    }
    reports.sort_by(|a, b| rank(b).0.total_cmp(&rank(a).0).then(rank(b).1.cmp(&rank(a).1)));
    reports.truncate(most);
    reports
}

/// Its rate; idle flows are ordered by the bytes that they have carried.
fn rank(report: &FlowReport) -> (f64, u64) {
    (report.up_bps + report.down_bps, report.up_bytes + report.down_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{EndReport, FlowPhase};

    fn report(id: u64, up_bps: f64, down_bytes: u64) -> FlowReport {
        let end = EndReport { leg: "a".into(), ..EndReport::default() };
        FlowReport {
            id,
            client: "10.0.0.1:1".into(),
            server: "10.0.0.2:2".into(),
            weight: 1,
            phase: FlowPhase::Relaying,
            age_s: 1.0,
            idle_s: 0.0,
            up_bytes: 0,
            down_bytes,
            up_bps,
            down_bps: 0.0,
            buffered_bytes: 0,
            client_end: end.clone(),
            server_end: end,
        }
    }

    fn ids(reports: &[FlowReport]) -> Vec<u64> {
        reports.iter().map(|report| report.id).collect()
    }

    #[test]
    fn the_fastest_of_all_workers_come_first() {
        let answer = |first: u64, request: Request| {
            assert_eq!(request.most, 3);
            request.answer(vec![
                report(first, 5.0 + first as f64 / 10.0, 0),
                report(first + 1, 0.0, 100 + first),
                report(first + 2, 0.0, 0),
            ]);
        };
        let workers = [0, 10].map(|first| {
            move |request| {
                std::thread::spawn(move || answer(first, request));
            }
        });
        let reports = survey(workers.iter().map(|worker| worker as &dyn Fn(Request)), 3);
        assert_eq!(ids(&reports), [10, 0, 11]);
    }

    #[test]
    fn peers_that_answer_late_are_left_out() {
        let (sender, answers) = mpsc::channel();
        sender.send(vec![report(1, 1.0, 0)]).unwrap();
        let reports = put_together(&answers, 9, Instant::now());
        assert!(reports.len() <= 1, "it may have come in time");
        // A living sender, and nothing comes.
        let until = Instant::now() + Duration::from_millis(20);
        assert!(put_together(&answers, 9, until).is_empty());
        assert!(Instant::now() >= until);
    }
}
