//! What providers answer, in the shape in which they answer it, and an upstream that says it: whole or in pieces that end in
//! the middle of an event. It knows nothing of limits.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Query};
use axum::http::{HeaderMap, Response};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;

/// One recorded answer.
pub struct Answer {
    pub name: &'static str,
    content_type: &'static str,
    pub body: &'static str,
    /// What it says that it took, if it says so.
    pub tokens: Option<u64>,
    /// The same of its first half: what is known of a stream that breaks off there.
    pub half: Option<u64>,
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

pub const ANSWERS: &[Answer] = &[
    Answer {
        name: "openai",
        content_type: JSON,
        body: r#"{"object":"chat.completion","model":"gpt-4o-2024-08-06","choices":[{"index":0,"message":{"role":"assistant","content":"ä"},"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0}}}"#,
        tokens: Some(29),
        half: None,
    },
    Answer {
        name: "openai-stream",
        content_type: EVENTS,
        body: "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n\
               data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"grüß\"}}],\"usage\":null}\n\n\
               data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n\
               data: {\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":1234548,\"total_tokens\":1234567}}\n\n\
               data: [DONE]\n\n",
        tokens: Some(1_234_567),
        half: None,
    },
    Answer {
        name: "openai-stream-without-usage",
        content_type: EVENTS,
        body: "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n\
               data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
               data: [DONE]\n\n",
        tokens: None,
        half: None,
    },
    Answer {
        name: "responses",
        content_type: JSON,
        body: r#"{"object":"response","status":"completed","output":[],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":0},"output_tokens":87,"total_tokens":123}}"#,
        tokens: Some(123),
        half: None,
    },
    Answer {
        name: "responses-stream",
        content_type: EVENTS,
        body: "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\",\"usage\":null}}\n\n\
               event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n\
               event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"output\":[],\"usage\":{\"input_tokens\":37,\"output_tokens\":11,\"total_tokens\":48}}}\n\n",
        tokens: Some(48),
        half: None,
    },
    Answer {
        name: "anthropic",
        content_type: JSON,
        body: r#"{"type":"message","role":"assistant","content":[{"type":"text","text":"Hi"}],"usage":{"input_tokens":2095,"cache_creation_input_tokens":5,"cache_read_input_tokens":70,"output_tokens":1234503}}"#,
        tokens: Some(1_236_603),
        half: None,
    },
    Answer {
        name: "anthropic-stream",
        content_type: EVENTS,
        // What message_start says of the output is not the last word on it.
        body: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"role\":\"assistant\",\"content\":[],\"usage\":{\"input_tokens\":472,\"cache_creation_input_tokens\":8,\"output_tokens\":2}}}\n\n\
               event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n\
               event: ping\ndata: {\"type\": \"ping\"}\n\n\
               event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Okay\"}}\n\n\
               event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
               event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":89}}\n\n\
               event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        tokens: Some(569),
        half: None,
    },
    Answer {
        name: "gemini",
        content_type: "application/json; charset=UTF-8",
        body: "{\n  \"candidates\": [{\"content\": {\"parts\": [{\"text\": \"Hi\"}], \"role\": \"model\"}, \"finishReason\": \"STOP\"}],\n  \"usageMetadata\": {\"promptTokenCount\": 8, \"candidatesTokenCount\": 12, \"totalTokenCount\": 1031, \"thoughtsTokenCount\": 1011}\n}\n",
        tokens: Some(1031),
        half: None,
    },
    Answer {
        name: "gemini-stream",
        content_type: "text/event-stream",
        // Lines end as Gemini ends them.
        body: "data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"Hel\"}]}}],\"usageMetadata\": {\"promptTokenCount\": 8,\"totalTokenCount\": 10}}\r\n\r\n\
               data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"lo\"}]}}],\"usageMetadata\": {\"promptTokenCount\": 8,\"totalTokenCount\": 1222}}\r\n\r\n\
               data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \".\"}]},\"finishReason\": \"STOP\"}],\"usageMetadata\": {\"promptTokenCount\": 8,\"totalTokenCount\": 1234}}\r\n\r\n",
        tokens: Some(1234),
        half: Some(10),
    },
    Answer {
        name: "twenty-thousand",
        content_type: JSON,
        body: r#"{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":19981,"total_tokens":20000}}"#,
        tokens: Some(20_000),
        half: None,
    },
    Answer {
        name: "silent",
        content_type: JSON,
        body: r#"{"object":"list","data":[]}"#,
        tokens: None,
        half: None,
    },
    Answer {
        name: "list",
        content_type: JSON,
        body: r#"[{"usage":{"total_tokens":7}}]"#,
        tokens: None,
        half: None,
    },
    Answer {
        name: "broken",
        content_type: JSON,
        body: r#"{"usage":{"total_tokens":7"#,
        tokens: None,
        half: None,
    },
    Answer {
        name: "words",
        content_type: JSON,
        body: r#"{"usage":{"total_tokens":"many"}}"#,
        tokens: None,
        half: None,
    },
    Answer {
        name: "page",
        content_type: "text/html",
        body: r#"{"usage":{"total_tokens":7}}"#,
        tokens: None,
        half: None,
    },
];

/// What the query of a request wants.
#[derive(Deserialize)]
struct Wish {
    answer: String,
    /// Bytes that are sent at a time; 0: all at once.
    #[serde(default)]
    cut: usize,
    #[serde(default = "ok")]
    status: u16,
    /// Bytes of white space before the body.
    #[serde(default)]
    pad: usize,
    /// How long it takes until the first of it is sent.
    #[serde(default)]
    after_ms: u64,
    /// Half of it, and then nothing more.
    #[serde(default)]
    half: bool,
}

fn ok() -> u16 {
    200
}

/// The headers of the last request that it was sent.
pub type Seen = Arc<Mutex<HeaderMap>>;

pub fn upstream(seen: Seen) -> Router {
    let answer = async move |Query(wish): Query<Wish>, headers: HeaderMap, _body: Bytes| {
        *seen.lock() = headers;
        let answer = ANSWERS.iter().find(|answer| answer.name == wish.answer).expect("a known answer");
        tokio::time::sleep(Duration::from_millis(wish.after_ms)).await;
        let mut body = vec![b' '; wish.pad];
        body.extend_from_slice(answer.body.as_bytes());
        let response = Response::builder().status(wish.status).header("content-type", answer.content_type);
        response.body(sent(body, &wish)).expect("an answer")
    };
    Router::new().fallback(answer).layer(DefaultBodyLimit::disable())
}

fn sent(mut body: Vec<u8>, wish: &Wish) -> Body {
    if wish.half {
        body.truncate(body.len() / 2);
    } else if wish.cut == 0 {
        return Body::from(body);
    }
    let pieces: Vec<Bytes> = body.chunks(wish.cut.max(1)).map(Bytes::copy_from_slice).collect();
    let half = wish.half;
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for piece in pieces {
            // A client that has gone needs no more.
            if sender.send(Ok::<_, std::io::Error>(piece)).await.is_err() {
                return;
            }
            // So that each is a packet of its own.
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        if half {
            sender.closed().await;
        }
    });
    Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receiver))
}
