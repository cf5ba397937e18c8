//! Readers: who is told what, and what happens to those who don't read.

use super::*;

const ALL: Wanted = Wanted { sample: Sample { highest: u64::MAX }, hash_values: false };

fn asked(domain: &str) -> Message<'static> {
    let (time, domain) = (time_text(0), domain.to_owned().into());
    let line = RecordLine { time, domain, descriptors: Vec::new(), status: 200, duration_ms: None };
    Message::Asked { line, lease: None }
}

fn tell(recorders: &Recorders, number: u64, domain: &str) {
    recorders.tell_asked(number, |_| asked(domain));
}

async fn next(recording: &mut Recording) -> Message<'static> {
    let line = recording.next().await.expect("a line must be there");
    assert_eq!(line.last(), Some(&b'\n'));
    serde_json::from_slice(&line).expect("it must be a message")
}

#[tokio::test]
async fn a_reader_is_told_of_its_sample() {
    let recorders = Arc::new(Recorders::default());
    tell(&recorders, 0, "nobody");
    assert!(!recorders.is_anybody_there());
    let half = Wanted { sample: Sample::of(0.5).unwrap(), ..ALL };
    let mut some = recorders.listen(half).unwrap();
    let mut all = recorders.listen(ALL).unwrap();
    assert!(recorders.is_anybody_there());
    tell(&recorders, u64::MAX, "out");
    tell(&recorders, 5, "in");
    recorders.tell_done("l", 12);
    for (recording, domains) in [(&mut some, &["in"][..]), (&mut all, &["out", "in"])] {
        for domain in domains {
            assert_eq!(next(recording).await, asked(domain));
        }
        assert_eq!(next(recording).await, Message::Done { lease: "l".into(), duration_ms: 12 });
    }
    drop((some, all));
    assert!(!recorders.is_anybody_there());
}

#[tokio::test]
async fn who_does_not_read_misses_lines_and_is_told_how_many() {
    let recorders = Arc::new(Recorders::default());
    let mut recording = recorders.listen(ALL).unwrap();
    let long = "d".repeat(WAITING_BYTES_MAX / 4);
    for _ in 0..6 {
        tell(&recorders, 0, &long);
    }
    // Three of them fit, with what is around them.
    assert_eq!(next(&mut recording).await, Message::Missed(3));
    for _ in 0..3 {
        assert_eq!(next(&mut recording).await, asked(&long));
    }
    assert_eq!(recording.reader.waiting_bytes.load(Ordering::Relaxed), 0);
    for _ in 0..WAITING_LINES_MAX + 7 {
        recorders.tell_done("l", 1);
        tell(&recorders, 0, "d");
    }
    assert_eq!(next(&mut recording).await, Message::Missed((WAITING_LINES_MAX as u64).div_ceil(2) + 7));
}

#[test]
fn readers_are_few() {
    let recorders = Arc::new(Recorders::default());
    let mut readers: Vec<_> = (0..READERS_MAX).map(|_| recorders.listen(ALL).unwrap()).collect();
    recorders.listen(ALL).unwrap_err();
    readers.pop();
    recorders.listen(ALL).unwrap();
}

#[test]
fn a_sample_is_a_share() {
    for wrong in [0.0, -0.1, 1.000_1, f64::NAN, f64::INFINITY] {
        assert_eq!(Sample::of(wrong), None, "{wrong}");
    }
    assert!(Sample::of(1.0).unwrap().has(u64::MAX));
    let tenth = Sample::of(0.1).unwrap();
    assert!(tenth.has(u64::MAX / 11) && !tenth.has(u64::MAX / 9));
}
