//! A response body that knows whether it was handed to the socket.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};

use crate::service::GrantGuard;

/// Something that learns that a response is being written. If it is dropped without the call, the response was not
/// written.
pub(crate) trait Delivery: Send + Unpin + 'static {
    fn delivered(self);
}

/// The guard of a grant travels with the answer. If the socket takes the answer, the client keeps the lock. If not, the
/// grant is rolled back.
impl Delivery for GrantGuard {
    fn delivered(self) {
        self.disarm();
    }
}

/// Ties `delivery` to the response. The connection takes the response when it polls the body for the first time.
///
/// A server cannot see more than that. What happens later, in the kernel, in a proxy or at the client, never releases a
/// lock.
pub(crate) fn track(response: Response, delivery: impl Delivery) -> Response {
    response.map(|body| {
        if body.is_end_stream() {
            // An empty body is never polled: the head is the whole answer.
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
