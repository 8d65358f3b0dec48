package fencepost

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ErrNothingDone is what the work of Once returns, alone or wrapped, if it certainly changed nothing.
var ErrNothingDone = errors.New("nothing was done")

// It is that of one place: work around it that passes it on may have done something.
type toldOnce struct{ error }

func (t toldOnce) Unwrap() error { return t.error }

// OnceOptions are those of a lock, how long the result is kept (24 h if you leave it out), what the request is, and
// whether not to do again what someone may have done. Wait: for another who is at work.
type OnceOptions struct {
	Options
	Keep        time.Duration
	Fingerprint string
	NoTakeover  bool
}

// Place is a worker's. If Earlier is not 0, so many workers before may have done the work, or half of it: look first.
type Place struct {
	*Lease
	Earlier, MaxResultBytes int64
}

// Once returns the stored result if there is one. Otherwise it works, and stores what work returns. The error is
// ErrBusy if another is still at work after Wait. If work fails, the place is given up, and the next worker is told
// that something may have been done, except after ErrNothingDone. When the lease is lost, the context of the work is
// canceled; a result that it returns all the same is stored if nobody has taken over.
func (c *Client) Once(ctx context.Context, key string, o OnceOptions,
	work func(context.Context, *Place) (*Result, error)) (*Result, error) {
	if o.Slots != 0 {
		return nil, refused("one at a time does a piece of work: it has no slots")
	}
	query := url.Values{}
	if o.Keep > 0 {
		query.Set("keep", inMs(o.Keep))
	}
	if o.Owner != "" {
		query.Set("owner", o.Owner)
	}
	if o.NoTakeover {
		query.Set("takeover", "false")
	}
	lease := &Lease{Key: key, Keys: []string{key}, record: &record{fingerprint: o.Fingerprint}}
	if err := c.take(ctx, lease, o.Options, query); err != nil || lease.record.stored != nil {
		return lease.record.stored, err
	}
	working, stop := c.renews(ctx, lease)
	hasEnded := false
	defer func() {
		if stop(); !hasEnded { // The work panics, or ends its goroutine.
			_ = c.leave(lease, false)
		}
		lease.end()
	}()
	place := &Place{Lease: lease, Earlier: lease.record.earlier, MaxResultBytes: lease.record.maxResultBytes}
	result, failed := work(working, place)
	hasEnded = true
	if failed == nil {
		return c.store(lease, result, query)
	}
	stop()
	over := lease.Check()
	isNothing := errors.Is(failed, ErrNothingDone)
	_ = c.leave(lease, isNothing && !errors.As(failed, &toldOnce{}))
	if over != nil { // Perhaps it failed only because its context was canceled.
		return nil, &Error{Kind: ErrLost, Message: fmt.Sprintf("%v. The work returned: %v", over, failed)}
	} else if isNothing {
		failed = toldOnce{failed}
	}
	return nil, failed
}

// The same post until it is answered. It needs no lease, only that nobody has taken over.
func (c *Client) store(lease *Lease, made *Result, begin url.Values) (*Result, error) {
	result, query := Result{}, url.Values{}
	until := time.Now().Add(-least(-lease.ttl, -c.RetryFor)) // The longer one.
	if made != nil {
		result = *made
	}
	// The work is done, so its result must not fail for what no request can carry: that counts as none.
	if result.Status != nil && (*result.Status < 0 || *result.Status > 999) {
		result.Status = nil
	}
	kind := strings.TrimSpace(result.ContentType)
	if result.ContentType = kind; len(kind) > 127 || !printed.MatchString(strings.ReplaceAll(kind, " ", "")) {
		result.ContentType = ""
	}
	if len(result.Body) == 0 && result.Status == nil { // An empty result says by a status that it is meant.
		result.Status = new(int)
	}
	if result.Status != nil {
		query.Set("status", strconv.Itoa(*result.Status))
	}
	if c.StoreFor > 0 {
		until = time.Now().Add(c.StoreFor)
	}
	if most := lease.record.maxResultBytes; most > 0 && int64(len(result.Body)) > most {
		_ = c.leave(lease, false)
		return nil, refused(fmt.Sprintf("%s: a result of %d bytes is longer than %d", lease.Key, len(result.Body), most))
	}
	lease.record.body, lease.record.contentType = result.Body, result.ContentType
	post := func() (*Result, error) {
		if err := c.call(context.Background(), "POST", lease, query, until, time.Time{}, false); err != nil {
			return nil, err
		}
		result.WasReplayed, result.FencingToken = false, lease.FencingToken
		return &result, nil
	}
	stored, err := post()
	var answer *Error
	if errors.Is(err, ErrRefused) { // Such as a result that is too large.
		_ = c.leave(lease, false)
	}
	if !errors.As(err, &answer) || answer.Type != "/problems/not-begun" {
		return stored, err
	}
	// The record was broken or lost. The work is done: what was said about taking over does not matter now.
	begin.Del("takeover")
	err = c.call(context.Background(), "PUT", lease, begin, until, time.Time{}, false)
	superseded := &Error{Kind: ErrSuperseded, Message: lease.Key + ": another worker has taken over"}
	switch {
	case err == nil && lease.record.stored == nil:
		return post()
	case err == nil:
		superseded.Successor = lease.record.stored.FencingToken
	case errors.Is(err, ErrBusy) && errors.As(err, &answer) && answer.Worker != nil:
		superseded.Successor = answer.Worker.FencingToken
	default:
		return nil, err
	}
	return nil, superseded
}
