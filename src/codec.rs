//! A protobuf codec that answers a broken message with INVALID_ARGUMENT and the name of the field.
//!
//! tonic's own answers INTERNAL, which reads as if the server were at fault.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Envoy's own header limit is 60 KiB, and a descriptor is made of headers.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct ProtoCodec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for ProtoCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E, D> Codec for ProtoCodec<E, D>
where
    E: Message + Send + 'static,
    D: Message + Default + Send + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = ProtoCodec<E, ()>;
    type Decoder = ProtoCodec<(), D>;

    fn encoder(&mut self) -> Self::Encoder {
        ProtoCodec(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProtoCodec(PhantomData)
    }
}

impl<E: Message> Encoder for ProtoCodec<E, ()> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, item: E, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(out).expect("the buffer must grow");
        Ok(())
    }
}

impl<D: Message + Default> Decoder for ProtoCodec<(), D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        D::decode(bytes).map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}
