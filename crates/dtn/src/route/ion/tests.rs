use proptest::prelude::*;

use super::*;

/// 2000-01-01 00:16:40.
const NOW: DtnTime = DtnTime::from_millis(1_000_000);

fn read(text: &str) -> IonPlan {
    parse(text, NOW).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// From, to, start, end in seconds, bytes per second and delay in seconds of each contact.
fn contacts(text: &str) -> Vec<(String, String, u64, u64, u64, u64)> {
    let row = |contact: &Contact| {
        let (from, to) = (contact.from.to_string(), contact.to.to_string());
        let [start, end] = [contact.start, contact.end].map(|time| time.millis() / 1000);
        (from, to, start, end, contact.rate.bps() / 8, contact.delay.as_secs())
    };
    read(text).contacts.iter().map(row).collect()
}

fn contact(
    from: u64,
    to: u64,
    start: u64,
    end: u64,
    rate: u64,
    delay: u64,
) -> (String, String, u64, u64, u64, u64) {
    (format!("ipn:{from}.0"), format!("ipn:{to}.0"), start, end, rate, delay)
}

#[test]
fn a_plan_as_ion_has_it() {
    let text = "\
# ionadmin host1.ionrc
1 1 ''
m horizon +0
s
a range +1 +3600 1 2 3

a contact +1 +3600 1 1 100000
a contact +1 +3600 1 2 100000
a contact +60 +3600 2 1 50000 1.0
a contact 2000/01/02-06:00:00 2000/01/02-06:10:00 1 2 8
e 1
";
    assert_eq!(
        contacts(text),
        [
            contact(1, 2, 1001, 4600, 100_000, 3),
            contact(2, 1, 1060, 4600, 50_000, 3),
            contact(1, 2, 108_000, 108_600, 8, 0),
        ]
    );
}

#[test]
fn relative_times_count_from_the_reference_line() {
    let text =
        "a contact +0 +1 1 2 9\n@ 2000/01/01-00:00:10\na contact +0 +1 1 2 9\n@ +5\na contact +0 +1 1 2 9\n";
    let starts: Vec<u64> = contacts(text).iter().map(|contact| contact.2).collect();
    assert_eq!(starts, [1000, 10, 15]);
}

#[test]
fn ranges_count_in_both_directions_unless_the_other_has_its_own() {
    let both = "a contact +0 +10 1 2 9\na contact +0 +10 2 1 9\n";
    let delays = |ranges: &str| -> Vec<u64> {
        contacts(&format!("{both}{ranges}")).iter().map(|contact| contact.5).collect()
    };
    assert_eq!(delays("a range +0 +10 1 2 7\n"), [7, 7]);
    assert_eq!(delays("a range +0 +10 1 2 7\na range +0 +10 2 1 4\n"), [7, 4]);
    assert_eq!(delays("a range +0 +10 2 1 4\n"), [0, 4]);
    // The longest during the contact.
    assert_eq!(delays("a range +0 +5 1 2 7\na range +5 +10 1 2 8\na range +10 +20 1 2 99\n"), [8, 8]);
    assert_eq!(delays("a range +0 +10 1 3 7\n"), [0, 0]);
}

#[test]
fn what_is_hardly_meant_is_warned_of() {
    let text = "^ 2\na contact +0 +10 1 2 9\na contact +20 +30 1 2 9 0.5\na contact +0 0 1 2 9\na contact -1 -1 1 1 0\n";
    let plan = read(text);
    assert_eq!(plan.contacts.len(), 2);
    let warnings: Vec<(usize, &str)> =
        plan.warnings.iter().map(|warning| (warning.line, &warning.what[..20])).collect();
    let expected = [
        (1, "regions are not told"),
        (2, "no range from 1 to 2"),
        (3, "a confidence of 0.5 "),
        (4, "a hypothetical conta"),
    ];
    assert_eq!(warnings, expected);
}

#[test]
fn only_the_section_of_ionadmin_is_read() {
    let text = "## begin ltpadmin\na span 1 32 32 1400 10000 1 'udplso'\n## end ltpadmin\n## begin ionadmin\n\
                a contact +0 +10 1 2 9\n## end ionadmin\n";
    assert_eq!(contacts(text).len(), 1);
}

#[test]
fn each_wrong_line_is_told_with_what_to_write() {
    for (text, says) in [
        ("a contact +0 +10 1 2", "a contact has 5 or 6 values, not 4; write a contact +START"),
        ("a contact +10 +10 1 2 9", "\"+10\" is not after \"+10\"; write an end after the start"),
        ("a contact 10 +10 1 2 9", "\"10\" is not a time; write yyyy/mm/dd-hh:mm:ss in UTC"),
        ("a contact 2027/02/29-00:00:00 +10 1 2 9", "is not a time"),
        ("a contact +-1 +10 1 2 9", "is not a time"),
        ("a contact +0 +10 0 2 9", "\"0\" is not a node; write the number N of ipn:N.0"),
        ("a contact +0 +10 ipn:1.0 2 9", "is not a node"),
        ("a contact +0 +10 1 2 0", "\"0\" is not a rate; write whole bytes per second"),
        ("a contact +0 +10 1 2 9 1.5", "is not a confidence; write a number above 0"),
        ("a range +0 +10 1 2", "a range has 5 values, not 4; write a range +START"),
        ("a range +0 +10 1 2 0.5", "is not a distance; write whole light seconds"),
        ("a span 1 2", "\"a\" is not a command of a contact plan"),
        ("d contact * 1 2", "changes and deletions are not read"),
        ("@ yesterday", "is not a time"),
        ("contact", "\"contact\" is not a command"),
    ] {
        let faults = parse(&format!("# plan\n{text}\n\n{text}\n"), NOW).unwrap_err();
        assert!(faults[0].what.contains(says), "{text}: {faults:?}");
        assert_eq!(faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [2, 4], "{text}");
    }
    assert_eq!(parse(&"?!\n".repeat(1000), NOW).unwrap_err().len(), MAX_FAULTS);
}

proptest! {
    #[test]
    fn every_text_is_read_or_refused(text in "([a@^#cd1] ?(contact|range)?( [-+0-9/:.]{0,20}){0,7}\n?){0,8}|.{0,200}") {
        crate::fuzzing::contact_plan(text.as_bytes());
    }

    #[test]
    fn what_is_written_is_read(
        rows in prop::collection::vec((0..100_000_u64, 1..100_000_u64, 1..9_u64, 10..19_u64, 1..MAX_RATE, any::<u32>()), 0..9),
    ) {
        let mut text = String::new();
        let mut expected = Vec::new();
        for (index, (start, length, from, to, rate, delay)) in (0..).zip(rows) {
            // One after the other, so that each has a range of its own.
            let (start, end) = (index * 1_000_000 + start, index * 1_000_000 + start + length);
            text += &format!("a contact +{start} +{end} {from} {to} {rate}\na range +{start} +{end} {from} {to} {delay}\n");
            expected.push(contact(from, to, 1000 + start, 1000 + end, rate, delay.into()));
        }
        prop_assert_eq!(contacts(&text), expected);
        prop_assert_eq!(read(&text).warnings, []);
    }
}
