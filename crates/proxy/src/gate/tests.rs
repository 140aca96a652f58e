use super::*;
use proptest::prelude::*;

const ALICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const BOB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn ceilings() -> Ceilings {
    Ceilings {
        connections: 4,
        per_client: Some(2),
        connecting: 3,
        buffered: 1000,
        descriptors: 100,
        at_limit: AtLimit::Refuse,
    }
}

/// A ticket of a gate of its own.
pub(crate) fn ticket() -> Ticket {
    gate(Ceilings { per_client: None, ..ceilings() }).admit(ALICE).unwrap()
}

fn gate(ceilings: Ceilings) -> Arc<Gate> {
    Arc::new(Gate::new(ceilings).unwrap())
}

/// Connections: all of them, and those that wait for their server.
fn counts(gate: &Gate) -> (usize, usize) {
    (gate.state().open, gate.connecting())
}

/// Takes the signal, if there was one.
fn was_signalled(gate: &Gate) -> bool {
    rustix::io::read(gate.changed(), &mut [0; 8]).is_ok()
}

#[test]
fn a_client_at_its_limit_is_diverted_and_others_are_not() {
    let gate = gate(ceilings());
    let tickets = [gate.admit(ALICE).unwrap(), gate.admit(ALICE).unwrap()];
    assert_eq!(gate.admit(ALICE).unwrap_err(), Limit::PerClient);
    assert_eq!(gate.diversion(), Diversion { everybody: None, clients: vec![ALICE.into()] });
    assert!(was_signalled(&gate));
    let _bob = gate.admit(BOB).unwrap();
    drop(tickets);
    assert!(was_signalled(&gate));
    assert_eq!(gate.diversion(), Diversion::default());
}

#[test]
fn connections_that_wait_for_their_server_are_limited_until_it_answers() {
    let gate = gate(ceilings());
    let mut tickets: Vec<_> = [ALICE, ALICE, BOB].map(|client| gate.admit(client).unwrap()).into();
    assert_eq!(gate.admit(BOB).unwrap_err(), Limit::Connecting);
    assert!(was_signalled(&gate) && gate.diversion().everybody.is_some());
    tickets[0].connected();
    assert!(was_signalled(&gate) && gate.diversion().everybody.is_none());
    tickets[0].connected();
    assert_eq!(counts(&gate), (3, 2));
    drop(tickets);
    assert_eq!(counts(&gate), (0, 0));
}

#[test]
fn where_others_pass_those_already_answered_are_still_let_in_but_never_beyond_the_descriptors() {
    let lenient = Ceilings { at_limit: AtLimit::Pass, per_client: None, connecting: 1000, ..ceilings() };
    let roomy = gate(lenient);
    let tickets: Vec<_> = std::iter::from_fn(|| roomy.admit(ALICE).ok()).collect();
    assert_eq!(tickets.len(), with_latecomers(4));
    let tight = gate(Ceilings { descriptors: 6, ..lenient });
    let tickets: Vec<_> = std::iter::from_fn(|| tight.admit(ALICE).ok()).collect();
    assert_eq!((tickets.len(), tight.admit(BOB).unwrap_err()), (6, Limit::Descriptors));
}

#[test]
fn full_buffers_and_missing_descriptors_divert_everybody_until_they_are_over() {
    let gate = gate(ceilings());
    for (begin, end) in [
        (
            Box::new(|gate: &Gate| gate.set_buffered(1000)) as Box<dyn Fn(&Gate)>,
            Box::new(|gate: &Gate| gate.set_buffered(999)) as Box<dyn Fn(&Gate)>,
        ),
        (
            Box::new(|gate: &Gate| gate.set_short_of_descriptors(true)),
            Box::new(|gate: &Gate| gate.set_short_of_descriptors(false)),
        ),
    ] {
        begin(&gate);
        assert!(was_signalled(&gate) && gate.diversion().everybody.is_some());
        end(&gate);
        assert!(was_signalled(&gate) && gate.diversion().everybody.is_none());
    }
}

#[test]
fn while_one_of_two_workers_has_no_descriptor_nobody_is_let_in() {
    let gate = gate(ceilings());
    let full = |short| {
        gate.set_short_of_descriptors(short);
        gate.diversion().everybody.is_some()
    };
    assert_eq!([true, true, false, false].map(full), [true, true, true, false]);
}

#[test]
fn a_host_cannot_be_many_clients_by_choosing_among_its_ipv6_addresses() {
    let client = |text: &str| Client::from(text.parse::<IpAddr>().unwrap());
    assert_eq!(client("2001:db8:1:2::1"), client("2001:db8:1:2:ffff::9"));
    assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
    assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
    assert_eq!(client("2001:db8:1:2::1").address().to_string(), "2001:db8:1:2::");
}

proptest! {
    /// Whatever comes and goes: no number is exceeded, none is lost, and at the end nothing is left.
    #[test]
    fn numbers_are_those_of_living_connections(steps in proptest::collection::vec((0u8..6, any::<bool>()), 0..200)) {
        let gate = gate(ceilings());
        let mut tickets: Vec<(u8, Ticket)> = Vec::new();
        for (number, come) in steps {
            if come {
                let outcome = gate.admit(Ipv4Addr::new(10, 0, 0, number).into());
                tickets.extend(outcome.ok().map(|ticket| (number, ticket)));
            } else if !tickets.is_empty() {
                let (_, mut ticket) = tickets.swap_remove(usize::from(number) % tickets.len());
                if number % 2 == 0 {
                    ticket.connected();
                }
            }
            prop_assert_eq!(counts(&gate).0, tickets.len());
            prop_assert!(tickets.len() <= 4 && counts(&gate).1 <= 3);
            for client in 0..6 {
                prop_assert!(tickets.iter().filter(|(of, _)| *of == client).count() <= 2);
            }
            prop_assert_eq!(gate.diversion().everybody.is_some(), tickets.len() == 4 || counts(&gate).1 == 3);
        }
        drop(tickets);
        prop_assert_eq!(counts(&gate), (0, 0));
        prop_assert!(gate.state().clients.is_empty());
    }
}
