// Package fencepost is a Fencepost client for Go 1.19 and later. It needs no other package: copy this file into your
// module, as fencepost/fencepost.go.
package fencepost

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// What can go wrong. Compare with errors.Is.
var (
	ErrBusy        = errors.New("someone else holds the lock, or is next in the wait queue")
	ErrLost        = errors.New("the lease is over: someone else may hold the lock now")
	ErrRefused     = errors.New("a parameter, the address, the certificate, the API key or its rights are wrong")
	ErrUnavailable = errors.New("no gateway can do it now: certainly nothing happened")
	ErrUnknown     = errors.New("no answer in time: it may have happened, or not")
)

// Error is what the gateway answered, as far as there was an answer. Get it with errors.As.
type Error struct {
	Kind       error         `json:"-"` // One of the above.
	Message    string        `json:"-"`
	RetryAfter time.Duration `json:"-"`
	Status     int           `json:"status"`
	Type       string        `json:"type"`
	Detail     string        `json:"detail"`
	Position   int           `json:"position"` // In the wait queue, from 1 on.
	Holder     *struct {
		Owner        string    `json:"owner"`
		FencingToken int64     `json:"fencing_token"`
		ExpiresAt    time.Time `json:"expires_at"`
		ExpiresInMs  int64     `json:"expires_in_ms"`
	} `json:"holder"`
}

func (e *Error) Error() string { return e.Message }
func (e *Error) Unwrap() error { return e.Kind }

func refused(why string) error { return &Error{Kind: ErrRefused, Message: why} }

func kindOf(status int, problem string) error {
	switch {
	case problem == "" && status <= 0:
		return ErrUnavailable
	case problem == "": // What a proxy answers has no such type.
		return ErrUnknown
	case status == 423:
		return ErrBusy
	case (status == 404 || status == 409) && problem != "/problems/not-found":
		return ErrLost
	case status == 429 || problem == "/problems/store-unavailable" || problem == "/problems/not-replicated" ||
		problem == "/problems/shutting-down":
		return ErrUnavailable
	case status >= 500:
		return ErrUnknown
	}
	return ErrRefused
}

// How an address and a key are written, and what a page says that wants TLS.
var (
	written = regexp.MustCompile(`^https?://([^/?#:@\[\]]+|\[[^/\]]*\])(:\d{1,5})?(/[^?#]*)?$`)
	printed = regexp.MustCompile(`^[!-~]*$`)
	tlsOnly = regexp.MustCompile(`(?i)tls|https`)
)

// The longest wait of one request. A dead gateway is noticed before the ticket in the wait queue expires.
const longestWait = 5 * time.Second

// Lease is a lock that you hold. Show FencingToken to what the lock protects.
type Lease struct {
	Key, Token   string
	FencingToken int64
	mutex        sync.Mutex
	endsAt       time.Time
}

// EndsAt is when the lease ends, and never too late. Its clock stands still while the machine sleeps: then the fencing
// token protects.
func (l *Lease) EndsAt() time.Time {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.endsAt
}

// Options are how long the lease is (30 s if you leave it out), how long to wait for the lock, and a note for people.
type Options struct {
	TTL, Wait time.Duration
	Owner     string
}

// Client asks the gateways at URLs, which share a store. Change its fields before you use it. For another CA than those
// of SSL_CERT_FILE, give it another HTTP.
type Client struct {
	URLs             []string
	APIKey           string
	RetryFor, TryFor time.Duration
	HTTP             *http.Client
	mutex            sync.Mutex
}

// New makes a client of URLs, separated by commas. What you leave out comes from FENCEPOST_URL. The API key comes from
// FENCEPOST_API_KEY or FENCEPOST_API_KEY_FILE.
func New(urls string) (*Client, error) {
	c := &Client{APIKey: os.Getenv("FENCEPOST_API_KEY"), RetryFor: 10 * time.Second, TryFor: 3 * time.Second}
	// A request that is sent on as another one would mean something else.
	c.HTTP = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if given, isSet := os.LookupEnv("FENCEPOST_URL"); urls == "" && isSet {
		urls = given
	} else if urls == "" {
		urls = "http://127.0.0.1:8080"
	}
	c.URLs = strings.Split(urls, ",")
	for i, given := range c.URLs {
		c.URLs[i] = strings.TrimRight(strings.TrimSpace(given), "/")
		if !written.MatchString(c.URLs[i]) { // It may hold a password, which nobody is told.
			return nil, refused("FENCEPOST_URL, or what you give, is not http[s]://HOST:PORT, without a user and a password")
		}
	}
	if file := os.Getenv("FENCEPOST_API_KEY_FILE"); file != "" && c.APIKey == "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, refused("the API key file: " + err.Error())
		} else if c.APIKey = strings.TrimSpace(string(text)); c.APIKey == "" {
			return nil, refused("the API key file " + file + " is empty")
		}
	}
	// Go itself would pass over a file that is not there.
	if file := os.Getenv("SSL_CERT_FILE"); file != "" && strings.Contains(urls, "https:") {
		if text, err := os.ReadFile(file); err != nil {
			return nil, refused("the CA file: " + err.Error())
		} else if !x509.NewCertPool().AppendCertsFromPEM(text) {
			return nil, refused("the CA file " + file + " has no certificate")
		}
	}
	if !printed.MatchString(c.APIKey) {
		return nil, refused("the API key has characters that no key has")
	}
	return c, nil
}

// Acquire takes a lock. The error is ErrBusy if it is not free within Wait, and ErrUnavailable at once if all gateways
// are away. When ctx ends, Acquire leaves the wait queue.
func (c *Client) Acquire(ctx context.Context, key string, o Options) (*Lease, error) {
	if o.TTL == 0 {
		o.TTL = 30 * time.Second
	}
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	lease := &Lease{Key: key, Token: fmt.Sprintf("%x", random)}
	query := url.Values{"ttl": {inMs(o.TTL)}}
	if o.Owner != "" {
		query.Set("owner", o.Owner)
	}
	begun := time.Now()
	err := c.call(ctx, "PUT", lease, query, begun.Add(o.Wait+c.RetryFor), begun.Add(o.Wait), true)
	if err == nil && time.Until(lease.EndsAt()) < o.TTL*2/3 { // It waited. The same request says when the lease ends.
		err = c.call(ctx, "PUT", lease, query, time.Now().Add(c.TryFor), time.Time{}, false)
	}
	if err == nil {
		return lease, nil
	}
	isOver := errors.Is(err, ErrLost) || errors.Is(err, ErrRefused) || errors.Is(err, ErrUnavailable)
	if !isOver && (o.Wait > 0 || !errors.Is(err, ErrBusy)) { // A grant that it was not told of is released.
		_ = c.call(context.Background(), "DELETE", lease, url.Values{}, time.Now().Add(c.TryFor), time.Time{}, false)
	}
	return nil, err
}

// Renew lengthens a lease to this time from now on.
func (c *Client) Renew(ctx context.Context, lease *Lease, ttl time.Duration) error {
	return c.call(ctx, "PATCH", lease, url.Values{"ttl": {inMs(ttl)}}, lease.EndsAt(), time.Time{}, false)
}

// Release gives a lock back.
func (c *Client) Release(ctx context.Context, lease *Lease) error {
	until := time.Now().Add(c.RetryFor)
	if time.Now().After(lease.EndsAt()) { // The lock is free by itself: one try is enough.
		until = time.Now().Add(c.TryFor)
	}
	return c.call(ctx, "DELETE", lease, url.Values{}, until, time.Time{}, false)
}

// Hold takes a lock, renews it during the work, and releases it. If the lease is lost, the context of the work is
// canceled, and the error is ErrLost.
func (c *Client) Hold(ctx context.Context, key string, o Options, work func(context.Context, *Lease) error) error {
	if o.TTL == 0 {
		o.TTL = 30 * time.Second
	}
	lease, err := c.Acquire(ctx, key, o)
	if err != nil {
		return err
	}
	var isLost atomic.Bool
	working, stop := context.WithCancel(ctx)
	go func() {
		for working.Err() == nil {
			select {
			case <-working.Done():
			case <-time.After(least(o.TTL/3, time.Until(lease.EndsAt()))):
				err := ErrLost
				if time.Now().Before(lease.EndsAt()) {
					err = c.Renew(working, lease, o.TTL)
				}
				if working.Err() == nil && (errors.Is(err, ErrLost) || time.Now().After(lease.EndsAt())) {
					isLost.Store(true)
					lease.mutex.Lock()
					lease.endsAt = time.Now() // So the release is tried once.
					lease.mutex.Unlock()
					stop()
				}
			}
		}
	}()
	hasEnded := false
	defer func() {
		if stop(); !hasEnded { // The work panics, or ends its goroutine.
			_ = c.Release(context.Background(), lease)
		}
	}()
	failed := work(working, lease)
	hasEnded = true
	stop()
	if time.Now().After(lease.EndsAt()) {
		isLost.Store(true)
	}
	released := c.Release(context.Background(), lease)
	switch {
	case isLost.Load() && failed != nil: // Perhaps only because its context was canceled.
		return &Error{Kind: ErrLost, Message: fmt.Sprintf("%s: the lease is over, and the work returned: %v", key, failed)}
	case isLost.Load():
		return &Error{Kind: ErrLost, Message: key + ": the lease is over"}
	case failed != nil:
		return failed // It says more than what the release does.
	case errors.Is(released, ErrUnknown):
		return nil
	}
	return released
}

// The same request with the same token until it is answered. A gateway that fails is asked last from then on.
func (c *Client) call(ctx context.Context, method string, l *Lease, query url.Values, until, waitUntil time.Time,
	isNew bool) error {
	failed, isDoubtful, isReached, isWrong := 0, !isNew, !isNew, true
	query.Set("key", l.Key)
	tryFor, doubtful := c.TryFor, []string(nil)
	if method == "PATCH" { // One gateway that hangs must not use up a lease that another one can renew.
		tryFor = least(tryFor, time.Until(until)/2)
	}
	for {
		c.mutex.Lock()
		base, count := c.URLs[0], len(c.URLs)
		c.mutex.Unlock()
		sent := time.Now()
		wait := least(longestWait, waitUntil.Sub(sent))
		if query.Del("wait"); wait > 0 {
			query.Set("wait", inMs(wait))
		} else {
			wait = 0
		}
		address, timeout := base+"/lock?"+query.Encode(), least(until.Sub(sent), tryFor+wait)
		status, text, after := c.send(ctx, method, address, l.Token, timeout)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var grant struct {
			FencingToken int64 `json:"fencing_token"`
			TTLMs        int64 `json:"ttl_ms"`
		}
		isGrant := status == http.StatusOK || status == http.StatusCreated // A proxy may answer so with anything.
		isGrant = isGrant && json.Unmarshal(text, &grant) == nil && grant.FencingToken > 0 && grant.TTLMs > 0
		if method == "DELETE" && status == http.StatusNoContent {
			return nil
		} else if method != "DELETE" && isGrant {
			l.mutex.Lock()
			defer l.mutex.Unlock()
			l.FencingToken, l.endsAt = grant.FencingToken, sent.Add(time.Duration(grant.TTLMs)*time.Millisecond)
			return nil
		}
		problem := Error{RetryAfter: after}
		if json.Unmarshal(text, &problem) != nil || !strings.HasPrefix(problem.Type, "/problems/") {
			problem = Error{RetryAfter: after, Detail: string(text)}
			if status == http.StatusBadRequest && strings.HasPrefix(base, "http:") && tlsOnly.Match(text) {
				status = -1
			}
		}
		isWrong = isWrong && status < 0
		problem.Kind = kindOf(status, problem.Type)
		problem.Message = fmt.Sprintf("%s %s at %s: %s", method, l.Key, base, problem.Detail)
		isDoubtful, isReached = isDoubtful || problem.Kind == ErrUnknown, isReached || status > 0
		pause := 200 * time.Millisecond
		if problem.Kind == ErrBusy && time.Until(waitUntil) > 100*time.Millisecond {
			if problem.Position > 0 {
				continue
			}
		} else if problem.Kind == ErrBusy || problem.Kind == ErrLost || problem.Kind == ErrRefused {
			if problem.Kind == ErrRefused && doubtful != nil && method == "PUT" { // Those may have granted it.
				others := &Client{URLs: doubtful, APIKey: c.APIKey, TryFor: c.TryFor, HTTP: c.HTTP}
				ends := time.Now().Add(c.TryFor)
				_ = others.call(context.Background(), "DELETE", l, url.Values{}, ends, time.Time{}, false)
			}
			return &problem
		} else {
			failed++
			if problem.Kind == ErrUnknown {
				doubtful = append(doubtful, base)
			}
			c.mutex.Lock()
			if c.URLs[0] == base {
				c.URLs = append(append([]string{}, c.URLs[1:]...), base)
			}
			c.mutex.Unlock()
			isRound := failed%count == 0
			if time.Now().After(until) || isRound && (isWrong || !isReached) {
				if problem.Kind = ErrUnavailable; isWrong {
					problem.Kind = ErrRefused
				} else if isDoubtful {
					problem.Kind = ErrUnknown
				}
				return &problem
			} else if !isRound {
				continue
			} else if after > 0 {
				pause = least(after, time.Until(until))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// The status, the text, and Retry-After. Status 0: nothing was sent. -1: and the settings are wrong. 1: the
// answer was lost.
func (c *Client) send(ctx context.Context, method, address, token string, timeout time.Duration) (
	int, []byte, time.Duration) {
	var isSent, isWrong atomic.Bool
	if timeout < 100*time.Millisecond {
		timeout = 100 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { isSent.Store(true) },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
			var ended net.Error // Of TLS, a connection that ends is an outage, and all else is a wrong setting.
			isOutage := errors.As(err, &ended) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
			isWrong.Store(err != nil && !isOutage && !errors.Is(err, context.Canceled))
		},
	})
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return 0, []byte(err.Error()), 0
	}
	request.Header.Set("Lease-Token", token)
	if c.APIKey != "" {
		request.Header.Set("Authorization", "Bearer "+c.APIKey)
	}
	answer, err := c.HTTP.Do(request)
	if err != nil && isWrong.Load() {
		return -1, []byte(err.Error()), 0
	} else if err != nil && !isSent.Load() {
		return 0, []byte(err.Error()), 0
	} else if err != nil {
		return 1, []byte(err.Error()), 0
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 1, []byte(err.Error()), 0
	}
	after, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
	return answer.StatusCode, text, time.Duration(after) * time.Second
}

func inMs(span time.Duration) string { return fmt.Sprintf("%dms", span.Milliseconds()) }
func least(one, other time.Duration) time.Duration {
	if one < other {
		return one
	}
	return other
}
