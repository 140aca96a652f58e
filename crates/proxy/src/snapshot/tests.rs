use super::*;
use proptest::prelude::*;
use std::time::{Duration, Instant};

/// A value with everything that values of the proxy have.
#[derive(Debug, Serialize, Deserialize)]
struct Sample {
    name: String,
    number: i64,
    #[serde(with = "serde_bytes")]
    content: Vec<u8>,
    sockets: Vec<Fd>,
    #[serde(default)]
    pipe: Option<(Fd, Fd)>,
    #[serde(default)]
    parts: BTreeMap<String, Section>,
}

fn fd() -> Fd {
    OwnedFd::from(std::fs::File::open("/dev/null").unwrap()).into()
}

/// How many clones of each descriptor there are.
fn clones(descriptors: &[Fd]) -> Vec<usize> {
    descriptors.iter().map(|fd| Arc::strong_count(&fd.0)).collect()
}

fn received(bytes: &[u8], descriptors: &[Fd]) -> Section {
    Section::received(bytes.to_vec(), descriptors.to_vec())
}

fn are_same(one: &[Fd], other: &[Fd]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(&one.0, &other.0))
}

fn sample(number: i64, content: Vec<u8>, sockets: Vec<Fd>, part: Option<Fd>) -> Sample {
    let part = part.map(|fd| ("part".to_owned(), Section::of(&(fd, "inner")).unwrap()));
    let pipe = sockets.first().cloned().zip(sockets.last().cloned());
    Sample { name: "a name".into(), number, content, sockets, pipe, parts: part.into_iter().collect() }
}

proptest! {
    #[test]
    fn a_value_comes_back_with_the_same_descriptors(
        number: i64, content in prop::collection::vec(any::<u8>(), 0..2000),
        count in 0usize..20, has_part: bool
    ) {
        let sockets: Vec<Fd> = (0..count).map(|_| fd()).collect();
        let part = has_part.then(fd);
        let value = sample(number, content, sockets, part.clone());
        let mut back: Sample = Section::of(&value).unwrap().read().unwrap();
        prop_assert!(are_same(&back.sockets, &value.sockets));
        prop_assert_eq!(back.pipe.is_some(), count > 0);
        prop_assert_eq!((&back.name, back.number, &back.content), (&value.name, number, &value.content));
        let inner = back.parts.remove("part").map(|section| section.read::<(Fd, String)>().unwrap());
        prop_assert!(inner.is_some() == has_part);
        if let (Some((fd, text)), Some(part)) = (inner, part) {
            prop_assert!(are_same(&[fd], &[part]) && text == "inner");
        }
    }

    #[test]
    fn a_section_that_is_cut_short_is_an_error_and_leaves_no_descriptor_open(
        content in prop::collection::vec(any::<u8>(), 0..100), cut in 0.0..1.0f64, lost in 1usize..4
    ) {
        let sockets: Vec<Fd> = (0..3).map(|_| fd()).collect();
        let value = sample(1, content, sockets.clone(), None);
        let section = Section::of(&value).unwrap();
        drop(value);
        let before = clones(&sockets);
        let (bytes, descriptors) = (section.bytes(), section.descriptors());
        let end = (bytes.len() as f64 * cut) as usize;
        let (fewer_bytes, fewer) = (&bytes[..end], &descriptors[..descriptors.len() - lost]);
        prop_assert!(received(fewer_bytes, descriptors).read::<Sample>().is_err());
        let error = received(bytes, fewer).read::<Sample>().unwrap_err().to_string();
        prop_assert!(error.contains("is not there, or is used twice"), "{}", error);
        prop_assert_eq!(clones(&sockets), before);
    }

    #[test]
    fn a_spoilt_section_never_panics_and_leaves_no_descriptor_open(
        content in prop::collection::vec(any::<u8>(), 0..100),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..10),
        garbage in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let sockets: Vec<Fd> = (0..3).map(|_| fd()).collect();
        let section = Section::of(&sample(1, content, sockets.clone(), Some(fd()))).unwrap();
        let before = clones(&sockets);
        let mut spoilt = section.bytes().to_vec();
        for (place, byte) in changes {
            *place.get_mut(&mut spoilt) = byte;
        }
        for bytes in [&spoilt, &garbage] {
            drop(received(bytes, section.descriptors()).read::<Sample>());
            drop(received(bytes, section.descriptors()).read::<serde_json::Value>());
        }
        prop_assert_eq!(clones(&sockets), before);
        prop_assert!(TABLE.take().is_none());
    }
}

#[test]
fn a_descriptor_is_taken_once() {
    let section = Section::of(&[0u32, 0]).unwrap();
    let error = received(section.bytes(), &[fd()]).read::<Vec<Fd>>().unwrap_err().to_string();
    assert!(error.contains("descriptor 0 is not there, or is used twice"), "{error}");
}

#[test]
fn descriptors_that_nothing_takes_are_closed() {
    let (read, write) = std::io::pipe().unwrap();
    let section = Section::of(&"no descriptor").unwrap();
    let descriptors = vec![OwnedFd::from(write).into()];
    Section::received(section.bytes().to_vec(), descriptors).read::<String>().unwrap();
    assert_eq!(std::io::read_to_string(read).unwrap(), "", "the pipe has no writer any more");
}

#[test]
fn a_descriptor_belongs_in_a_section() {
    let error = serde_json::to_string(&fd()).unwrap_err().to_string();
    assert!(error.contains("outside of a section"), "{error}");
    assert!(serde_json::from_str::<Fd>("0").is_err());
}

#[test]
fn a_field_that_is_not_known_is_ignored_and_one_with_a_default_may_be_missing() {
    #[derive(Serialize)]
    struct Newer {
        name: &'static str,
        number: i64,
        content: (),
        weather: (Fd, &'static str),
        sockets: [Fd; 1],
    }
    #[derive(Serialize)]
    struct Older {
        name: &'static str,
        number: i64,
    }
    #[derive(Deserialize)]
    struct Known {
        name: String,
        number: i64,
        #[serde(default)]
        sockets: Vec<Fd>,
    }
    let sockets = [fd()];
    let newer =
        Newer { name: "new", number: 7, content: (), weather: (fd(), "fine"), sockets: sockets.clone() };
    let known: Known = Section::of(&newer).unwrap().read().unwrap();
    assert!(known.name == "new" && known.number == 7 && are_same(&known.sockets, &sockets));
    let known: Known = Section::of(&Older { name: "old", number: 6 }).unwrap().read().unwrap();
    assert!(known.name == "old" && known.sockets.is_empty());
    let error = Section::of(&"only a name").unwrap().read::<Known>().err().expect("no struct").to_string();
    assert!(error.contains("struct Known"), "{error}");
}

#[test]
fn a_panic_while_a_section_is_written_leaves_the_thread_as_it_was() {
    struct Panics;
    impl Serialize for Panics {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("on purpose");
        }
    }
    std::panic::catch_unwind(|| Section::of(&(fd(), Panics))).unwrap_err();
    assert!(TABLE.take().is_none());
}

#[test]
fn instants_keep_their_distance_from_now() {
    #[derive(Serialize, Deserialize)]
    struct Times {
        #[serde(with = "instant")]
        past: Instant,
        #[serde(with = "optional_instant")]
        future: Option<Instant>,
        #[serde(with = "optional_instant")]
        never: Option<Instant>,
    }
    let now = Instant::now();
    let hour = Duration::from_secs(3600);
    let past = now.checked_sub(Duration::from_millis(20)).unwrap();
    let times = Times { past, future: Some(now + hour), never: None };
    let back: Times = Section::of(&times).unwrap().read().unwrap();
    let tolerance = Duration::from_secs(1);
    assert!(back.past >= past && back.past - past < tolerance);
    let future = back.future.unwrap();
    assert!(future >= now + hour && future - (now + hour) < tolerance && back.never.is_none());
}

#[test]
fn a_section_that_is_missing_or_cannot_be_read_is_called_by_its_name() {
    let mut snapshot = Snapshot::default();
    snapshot.write("ports", &"no numbers").unwrap();
    let error = snapshot.read::<Vec<u16>>("ports").unwrap_err().to_string();
    assert!(error.contains("section ports"), "{error}");
    let error = snapshot.read::<Vec<u16>>("ports").unwrap_err().to_string();
    assert!(error.contains("no section ports"), "{error}");
}
