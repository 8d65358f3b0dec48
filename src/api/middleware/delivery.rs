//! A response body that knows whether it was handed to the socket.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};

use crate::service::GrantGuard;

/// Something that wants to know that a response is being written. Dropped without the call, it was not.
pub(crate) trait Delivery: Send + Unpin + 'static {
    fn delivered(self);
}

/// The guard of a grant goes with the answer: what the socket took is the client's, what it did not is taken back.
impl Delivery for GrantGuard {
    fn delivered(self) {
        self.disarm();
    }
}

/// Ties `delivery` to the response: its first poll is the moment at which the connection takes it.
///
/// The moment is as late as a server can see. What happens after it, in the kernel, in a proxy, at the client, is
/// not visible from here, and nothing is ever released because of it.
pub(crate) fn track(response: Response, delivery: impl Delivery) -> Response {
    response.map(|body| {
        if body.is_end_stream() {
            // Nobody polls an empty body: its head is all there is.
            delivery.delivered();
            return body;
        }
        Body::new(TrackedBody { body, delivery: Some(delivery) })
    })
}

struct TrackedBody<D> {
    body: Body,
    delivery: Option<D>,
}

impl<D: Delivery> HttpBody for TrackedBody<D> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(delivery) = self.delivery.take() {
            delivery.delivered();
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
