//! The frames of one direction of an HTTP/2 connection, as their bytes go by. Keeps nothing of what they say.

/// A length of three bytes, a kind, flags and a stream.
const HEAD_BYTES: usize = 9;

/// `PRI * HTTP/2.0` and what follows it: a client sends it before its first frame.
const PREFACE_BYTES: usize = 24;

const DATA: u8 = 0;
const RST_STREAM: u8 = 3;

/// Before the first frame.
const NO_KIND: u8 = u8::MAX;

/// Something of a frame that is worth telling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FramePart {
    /// So many bytes of a DATA frame.
    Data {
        stream: u32,
        bytes: usize,
    },
    Reset {
        stream: u32,
    },
}

#[derive(Debug)]
pub(super) struct Frames {
    /// The head of the next frame, as far as it has come.
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// What is still to come of this frame.
    left: usize,
    kind: u8,
    stream: u32,
}

impl Frames {
    pub(super) fn of_a_client() -> Self {
        Self { left: PREFACE_BYTES, ..Self::of_a_server() }
    }

    pub(super) fn of_a_server() -> Self {
        Self { head: [0; HEAD_BYTES], head_bytes: 0, left: 0, kind: NO_KIND, stream: 0 }
    }

    pub(super) fn look_at(&mut self, mut bytes: &[u8], mut see: impl FnMut(FramePart)) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let count = self.left.min(bytes.len());
                if self.kind == DATA {
                    see(FramePart::Data { stream: self.stream, bytes: count });
                }
                self.left -= count;
                bytes = &bytes[count..];
                continue;
            }
            // Nearly always a head comes in one piece.
            if self.head_bytes == 0
                && let Some((head, rest)) = bytes.split_first_chunk()
            {
                self.begin(*head);
                bytes = rest;
            } else {
                let count = (HEAD_BYTES - self.head_bytes).min(bytes.len());
                self.head[self.head_bytes..self.head_bytes + count].copy_from_slice(&bytes[..count]);
                self.head_bytes += count;
                bytes = &bytes[count..];
                if self.head_bytes < HEAD_BYTES {
                    return;
                }
                self.begin(self.head);
            }
            if self.kind == RST_STREAM {
                see(FramePart::Reset { stream: self.stream });
            }
        }
    }

    fn begin(&mut self, head: [u8; HEAD_BYTES]) {
        let [high, middle, low, kind, _, stream @ ..] = head;
        self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
        self.kind = kind;
        // The first bit is reserved.
        self.stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        self.head_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("a short one").to_be_bytes();
        [&length[1..], &[kind, 1], &stream.to_be_bytes(), payload].concat()
    }

    #[test]
    fn frames_are_seen_however_their_bytes_come() {
        let bytes = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, b""),
            frame(1, 1, b"headers"),
            // What looks like a frame in the payload of another is none.
            frame(DATA, 1, &frame(RST_STREAM, 9, b"")),
            frame(RST_STREAM, 0x8000_0001, &[0, 0, 0, 8]),
            frame(DATA, 3, b""),
            frame(DATA, 5, b"abc"),
        ]
        .concat();
        for piece in 1..=bytes.len() {
            let mut frames = Frames::of_a_client();
            let (mut data, mut resets) = ([0; 6], Vec::new());
            for part in bytes.chunks(piece) {
                frames.look_at(part, |seen| match seen {
                    FramePart::Data { stream, bytes } => data[stream as usize] += bytes,
                    FramePart::Reset { stream } => resets.push(stream),
                });
            }
            assert_eq!((data, &resets[..]), ([0, 9, 0, 0, 0, 3], &[1][..]), "in pieces of {piece}");
        }
    }
}
