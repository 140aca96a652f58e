use proptest::prelude::*;

use super::*;
use crate::file::Source;

fn sweep(text: &str) -> Sweep {
    text.parse().unwrap()
}

fn steps(sweep: &Sweep) -> Vec<String> {
    let all = |step: &Step| step.settings.iter().map(Setting::to_string).collect::<Vec<_>>().join(" ");
    sweep.steps.iter().map(all).collect()
}

#[test]
fn a_comma_within_brackets_is_no_end_of_a_value() {
    let sweep = sweep("tcp.sat.rto={ min = '1s', max = '2s' },[1,2],\"a,b\" , c");
    let values: Vec<&str> = sweep.steps.iter().map(|step| step.settings[0].value.as_str()).collect();
    assert_eq!(values, ["{ min = '1s', max = '2s' }", "[1,2]", "\"a,b\"", "c"]);
    for wrong in ["", "a", "a=", "a=1,,2", "=1", &format!("a={}", "x".repeat(201))] {
        assert!(wrong.parse::<Sweep>().is_err(), "{wrong}");
    }
}

#[test]
fn parameters_joined_by_a_plus_are_set_together() {
    let pairs = sweep("link.a.delay + link.b.delay = 10ms+20ms, 30ms + \"1e+1s\"");
    assert_eq!(pairs.columns, ["link.a.delay", "link.b.delay"]);
    assert_eq!(
        steps(&pairs),
        ["link.a.delay=10ms link.b.delay=20ms", "link.a.delay=30ms link.b.delay=\"1e+1s\""]
    );
    assert_eq!(steps(&sweep("a=1e+3,2+2")), ["a=1e+3", "a=2+2"], "one key alone has one value");
    for (wrong, why) in [
        ("a+b=1+2,3", "1 values where 2 parameters are set together: 3"),
        ("a+b=1+2+3", "3 values where 2"),
        ("a+a=1+2", "a is set twice"),
        ("a+=1+2", "\"\" is not a key"),
        ("a+case=1+2", "\"case\" is not a key"),
    ] {
        let text = wrong.parse::<Sweep>().unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn cases_have_a_name_and_settings() {
    let cases = sweep("case=clean, lossy:link.a.per=1%+tcp.t.rto={ min = '1s', max = '2s' }");
    assert!(cases.is_cases());
    assert_eq!(steps(&cases), ["", "link.a.per=1% tcp.t.rto={ min = '1s', max = '2s' }"]);
    assert_eq!(cases.steps[1].labels(), ["case=lossy".parse().unwrap()]);
    for (wrong, why) in [
        ("case=a,a", "two cases are called a"),
        ("case=a b", "\"a b\" is not a name"),
        ("case=a:", "\"\" is not a setting"),
        ("case=a:x", "\"x\" is not a setting"),
        ("case=a:x=1+x=2", "x is set twice"),
    ] {
        let text = wrong.parse::<Sweep>().unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn what_is_set_elsewhere_is_left_out() {
    let only_a = sweep("a+b=1+2,3+4").without(|key| key == "b").unwrap();
    assert_eq!(
        (only_a.columns.clone(), steps(&only_a)),
        (vec!["a".into()], vec!["a=1".into(), "a=3".into()])
    );
    assert_eq!(sweep("a=1,2").without(|key| key == "a"), None);
    let cases = sweep("case=x:a=1+b=2,y:a=3").without(|key| key == "a").unwrap();
    assert_eq!(steps(&cases), ["b=2", ""]);
}

#[test]
fn a_section_of_sweeps_says_the_same_as_texts() {
    let text = r#"
[sweep]
link.sat.per = ["0", 0.01]
"link.a.delay+link.b.delay" = [["10ms", "20ms"], ["30ms", "40ms"]]
[[sweep.case]]
name = "clean"
[[sweep.case]]
name = "lossy"
set = { "link.a.per" = "1%", tcp.t.rto.max = "10s" }
"#;
    let source = Source::parse("s", text).unwrap();
    let expected = [
        "link.sat.per=0,0.01",
        "link.a.delay+link.b.delay=10ms+20ms,30ms+40ms",
        "case=clean,lossy:link.a.per=1%+tcp.t.rto.max=10s",
    ];
    assert_eq!(source.sweeps(), expected.map(sweep));
}

#[test]
fn what_is_wrong_in_a_section_is_named_with_its_line() {
    for (section, key, what) in [
        ("per = 3", "per", "3 is not a list"),
        ("per = []", "per", "a list is not a list of values"),
        ("per = [[1]]", "per", "a list is not a text"),
        ("\"a+b\" = [1, 2]", "a+b", "1 is not a list: a list for each step"),
        ("\"a+b\" = [[1, 2], [3]]", "a+b", "1 values where 2"),
        ("case = [3]", "case", "3 is not a case"),
        ("case = [{ set = {} }]", "case", "name is missing"),
        ("case = [{ name = \"a\", sets = {} }]", "case", "there is no such key; there is name, set"),
        ("case = [{ name = \"a\", set = 3 }]", "case", "3 is not a table of settings"),
        ("case = [{ name = \"a\" }, { name = \"a\" }]", "case", "two cases are called a"),
    ] {
        let text = Source::parse("s", &format!("[sweep]\n{section}\n")).unwrap_err().to_string();
        assert!(text.starts_with(&format!("s:2: sweep.{key}")) && text.contains(what), "{text}");
    }
    assert!(Source::parse("s", "sweep = [1]").is_err());
}

fn key() -> impl Strategy<Value = String> {
    "(link|flow|tcp)\\.[a-z0-9_-]{1,8}\\.[a-z_]{1,8}"
}

/// Values as they stand in a list: neither a separator nor half a bracket outside of quotation marks.
fn value() -> impl Strategy<Value = String> {
    prop_oneof!["[a-zA-Z0-9.%/ :=-]{0,10}[a-z0-9%]", "\"[a-z,+ ]{0,8}\"", "\\[[0-9]{1,3}, ?[0-9]\\]"]
        .prop_map(|text| text.trim().to_owned())
}

fn any_sweep() -> impl Strategy<Value = Sweep> {
    let keys =
        || prop::collection::hash_set(key(), 1..4).prop_map(|keys| keys.into_iter().collect::<Vec<_>>());
    let together = keys().prop_flat_map(|keys| {
        let row = prop::collection::vec(value(), keys.len());
        (Just(keys), prop::collection::vec(row, 1..5))
    });
    let settings = keys().prop_flat_map(|keys| {
        let values = prop::collection::vec(value(), keys.len());
        values.prop_map(move |values| {
            let pairs = keys.iter().cloned().zip(values);
            pairs.map(|(key, value)| Setting { key, value }).collect::<Vec<_>>()
        })
    });
    let settings = prop_oneof![Just(Vec::new()), settings];
    let cases = prop::collection::hash_map("[a-z0-9_-]{1,10}", settings, 1..5);
    prop_oneof![
        together.prop_map(|(keys, rows)| Sweep::together(keys, rows).unwrap()),
        cases.prop_map(|cases| Sweep::cases(cases).unwrap()),
    ]
}

proptest! {
    #[test]
    fn a_sweep_is_the_sweep_that_its_text_says(sweep in any_sweep()) {
        prop_assert_eq!(sweep.to_string().parse::<Sweep>().unwrap(), sweep);
    }

    #[test]
    fn any_text_is_a_sweep_that_can_be_written_or_an_error(
        text in "(case|a|a\\+b)?=?[a-z0-9,+:=\"'{}\\[\\] ]{0,30}",
    ) {
        if let Ok(sweep) = text.parse::<Sweep>() {
            prop_assert_eq!(&sweep.to_string().parse::<Sweep>().unwrap(), &sweep);
            let mut settings = sweep.steps.iter().flat_map(|step| &step.settings);
            prop_assert!(settings.all(|setting| !setting.value.is_empty()));
        }
    }
}
