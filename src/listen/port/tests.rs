//! Who is closed for whom, and who may hold how much.

use super::*;
use crate::telemetry::Metrics;

fn port(connections_max: usize, bytes_max: usize, connection_bytes_max: usize) -> Arc<Port> {
    Port::new(Bounds { connections_max, bytes_max, connection_bytes_max }, Metrics::default().port("grpc"))
}

fn is_closing(place: &Place) -> bool {
    place.connection.is_closing.load(Ordering::Relaxed)
}

/// Whom a newcomer replaces: first who was never answered, then who is owed nothing, then who was answered longest ago.
#[test]
fn the_least_useful_connection_makes_way() {
    let port = port(4, 1000, 1000);
    let mut places: Vec<Place> = (0..4).map(|n| port.try_admit(n).unwrap()).collect();
    let answer = |place: &Place, now_ms| {
        let call = place.connection.call(0).unwrap();
        call.is_read();
        call.is_answered(true, now_ms);
        call
    };
    // 0 was answered last of all, 1 is owed an answer, 2 has half a request, 3 was never answered.
    drop(answer(&places[0], 30));
    drop(answer(&places[1], 10));
    let owed = places[1].connection.call(0).unwrap();
    owed.is_read();
    drop(answer(&places[2], 20));
    let half = places[2].connection.call(0).unwrap();
    for (expected, later_ms) in [(3, 50), (2, 60), (0, 70), (1, 80)] {
        assert!(port.try_admit(40).is_none());
        let closing: Vec<usize> = (0..places.len()).filter(|at| is_closing(&places[*at])).collect();
        assert_eq!(closing, [expected]);
        assert!(port.try_admit(40).is_none(), "one at a time");
        drop(places.remove(expected));
        let newcomer = port.try_admit(40).expect("there is a place");
        drop(answer(&newcomer, later_ms));
        places.push(newcomer);
    }
    drop((owed, half));
}

#[tokio::test]
async fn a_newcomer_waits_until_the_place_is_free() {
    let port = port(1, 0, 0);
    let first = port.admit().await;
    let served = std::future::pending::<Result<(), Full>>();
    let (second, ()) = tokio::join!(port.admit(), first.keep(served));
    assert!(!is_closing(&second));
}

#[tokio::test]
async fn a_panic_is_counted_and_ends_only_its_own_task() {
    let port = port(1, 0, 0);
    let place = port.admit().await;
    port.run(async move {
        let _place = place;
        panic!("on purpose");
    });
    let next = port.admit().await;
    assert_eq!(port.metrics.panics.get(), 1, "and its place is free");
    let (told, hears) = tokio::sync::oneshot::channel();
    port.run(async move {
        let _place = next;
        told.send(()).expect("the test must listen");
    });
    hears.await.expect("other tasks must run");
    drop(port.admit().await);
    assert_eq!(port.metrics.panics.get(), 1);
}

#[test]
fn a_connection_holds_at_most_what_is_free() {
    let port = port(10, 1000, 400);
    let [a, b, c] = [(); 3].map(|()| port.try_admit(0).unwrap());
    let first = a.connection.call(300).unwrap();
    assert_eq!(first.hold(101), Err(Full), "its own maximum");
    first.hold(100).unwrap();
    // 600 are free; b may have half of that.
    let second = b.connection.call(300).unwrap();
    assert_eq!(second.hold(1), Err(Full), "no more than is free");
    // 300 are free, and c has as much right to them as the others.
    assert!(c.connection.call(151).is_err());
    let third = c.connection.call(150).unwrap();
    drop((first, second, third));
    assert_eq!(port.bytes.load(Ordering::Relaxed), 0, "all of it came back");
    c.connection.call(400).unwrap();
}

#[test]
fn an_answer_that_nobody_takes_ends_its_connection() {
    let port = port(10, 1000, 1000);
    let [unread, read, streams] = [(); 3].map(|()| port.try_admit(0).unwrap());
    let start_ms = 7 * SWEEP_MS + SWEEP_MS / 2;
    let kept = unread.connection.call(1).unwrap();
    kept.is_answered(true, start_ms);
    read.connection.call(1).unwrap().is_answered(true, start_ms);
    let stream = streams.connection.call(1).unwrap();
    stream.is_answered(false, start_ms);
    for later in 0..3 {
        port.close_unread(start_ms + later * SWEEP_MS);
        assert!(!is_closing(&unread), "{later} intervals later");
    }
    port.close_unread(start_ms + 3 * SWEEP_MS);
    assert_eq!([&unread, &read, &streams].map(is_closing), [true, false, false]);
    // A sweep that comes late finds it too.
    let late = port.try_admit(0).unwrap();
    let kept = late.connection.call(1).unwrap();
    kept.is_answered(true, start_ms);
    port.close_unread(start_ms + 6 * SWEEP_MS);
    assert!(is_closing(&late));
}
