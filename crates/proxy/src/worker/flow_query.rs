//! A worker's answers to queries for its flows.
//!
//! Thousands of flows would wait for tens of milliseconds. So it is done in pieces, between which bytes
//! are relayed: first all flows are ranked, which takes no system call, then the sockets of those are read
//! that are wanted.

use std::collections::VecDeque;
use std::time::Instant;

use super::Worker;
use crate::telemetry::{FlowReport, Request};
use crate::types::slab::Key;

/// Flows that are ranked at once.
const RANKED_AT_ONCE: usize = 4096;
/// Flows whose sockets are read at once: about half a millisecond.
const READ_AT_ONCE: usize = 256;

/// The queries that are not answered yet, in order.
#[derive(Debug, Default)]
pub(super) struct Surveys(VecDeque<Survey>);

#[derive(Debug)]
struct Survey {
    request: Request,
    /// The place that is ranked next; nothing when all are.
    next_place: Option<usize>,
    /// The fastest last, once all are ranked.
    ranked: Vec<(f64, u64, Key)>,
    reports: Vec<FlowReport>,
}

impl Surveys {
    pub(super) fn begin(&mut self, request: Request) {
        self.0.push_back(Survey { request, next_place: Some(0), ranked: Vec::new(), reports: Vec::new() });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Worker {
    /// Does one piece of the first survey.
    pub(super) fn survey_some(&mut self) {
        let Some(mut survey) = self.surveys.0.pop_front() else { return };
        match survey.next_place {
            Some(place) => self.rank_some(&mut survey, place),
            None => self.read_some(&mut survey),
        }
        if survey.next_place.is_none() && survey.ranked.is_empty() {
            survey.request.answer(survey.reports);
        } else {
            self.surveys.0.push_front(survey);
        }
    }

    fn rank_some(&mut self, survey: &mut Survey, place: usize) {
        for key in self.flows.keys(place, RANKED_AT_ONCE) {
            if let Some((rate, bytes)) = self.flows.get_mut(key).and_then(|flow| flow.rank()) {
                survey.ranked.push((rate, bytes, key));
            }
        }
        let next = place + RANKED_AT_ONCE;
        survey.next_place = (next < self.flows.places()).then_some(next);
        if survey.next_place.is_none() {
            survey.keep_the_fastest();
        }
    }

    fn read_some(&mut self, survey: &mut Survey) {
        let now = Instant::now();
        let first = survey.ranked.len().saturating_sub(READ_AT_ONCE);
        for (.., key) in survey.ranked.drain(first..).rev() {
            // It may have ended since.
            let report = self.flows.get_mut(key).and_then(|flow| flow.report(now));
            survey.reports.extend(report);
        }
    }
}

impl Survey {
    fn keep_the_fastest(&mut self) {
        self.ranked.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let too_many = self.ranked.len().saturating_sub(self.request.most);
        self.ranked.drain(..too_many);
    }
}
