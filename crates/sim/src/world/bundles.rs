//! The bundle nodes of flows in the event loop.

use super::World;
use crate::events::Event;

impl World<'_> {
    /// After an event at a flow in bundles: lets its nodes act, and sends what is ready. An event at one node
    /// may affect all others: an acknowledgement makes room in the store before it.
    #[inline(never)]
    pub(super) fn service_bundles(&mut self, number: usize) {
        let flow = &mut self.flows[number];
        let lived = flow.ended.is_none();
        flow.service_bundles(self.now, &mut self.endpoints);
        if lived && flow.ended.is_some() {
            self.active_flows -= 1;
        }
        for endpoint in flow.endpoints() {
            self.transmit(endpoint);
        }
        let flow = &mut self.flows[number];
        let Some(bundle_nodes) = &mut flow.bundle_nodes else { return };
        for hop in 0..flow.legs {
            let (due, alarm) = bundle_nodes.alarm(hop);
            alarm.set(&mut self.events, due, Event::Session((flow.first + 2 * hop) as u32));
        }
    }

    /// Wakes the session with this sending end.
    pub(super) fn wake_session(&mut self, endpoint: usize) {
        let number = self.attachments[endpoint].flow as usize;
        let flow = &mut self.flows[number];
        let hop = (endpoint - flow.first) / 2;
        let Some(bundle_nodes) = &mut flow.bundle_nodes else { return self.events.remove_first() };
        let (due, alarm) = bundle_nodes.alarm(hop);
        if alarm.fires(&mut self.events, self.now, due) {
            bundle_nodes.on_alarm(hop, &mut self.endpoints[endpoint..endpoint + 2]);
            self.service_bundles(number);
            if let Some(bundle_nodes) = &mut self.flows[number].bundle_nodes {
                bundle_nodes.alarm(hop).1.done(&mut self.events);
            }
        }
    }
}
