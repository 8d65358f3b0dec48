// Package fencepost is a client for Go 1.19 and later. Copy this file into your module, as fencepost/fencepost.go.
package fencepost

import (
	"bytes"
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
	// Of these, only Once speaks: see once.go, which you can leave out.
	ErrMismatch   = fmt.Errorf("the record belongs to a request with another fingerprint: %w", ErrRefused)
	ErrAbandoned  = errors.New("someone may have done the work, and stored no result")
	ErrSuperseded = fmt.Errorf("another worker has taken over, and your result is not stored: %w", ErrLost)
)

// Error is what the gateway answered, as far as there was an answer. Get it with errors.As.
type Error struct {
	Kind       error         `json:"-"` // One of the above.
	Message    string        `json:"-"`
	RetryAfter time.Duration `json:"-"`
	Status     int           `json:"status"`
	Type       string        `json:"type"`
	Detail     string        `json:"detail"`
	Parameter  string        `json:"parameter"` // Which one is wrong.
	Position   int           `json:"position"`  // In the wait queue, from 1 on.
	Holder     *Holder       `json:"holder"`
	Worker     *Holder       `json:"worker"`        // Who does a piece of work.
	Yours      bool          `json:"yours"`         // Whether that is this client.
	Successor  int64         `json:"fencing_token"` // The number of who has taken over.
}

// Holder is who holds a lock, or does a piece of work.
type Holder struct {
	Owner        string    `json:"owner"`
	FencingToken int64     `json:"fencing_token"`
	ExpiresAt    time.Time `json:"expires_at"`
	ExpiresInMs  int64     `json:"expires_in_ms"`
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
	case problem == "/problems/once-abandoned":
		return ErrAbandoned
	case problem == "/problems/superseded":
		return ErrSuperseded
	case problem == "/problems/fingerprint-mismatch":
		return ErrMismatch
	case status == 423:
		return ErrBusy
	case (status == 404 || status == 409) && problem != "/problems/not-found":
		return ErrLost
	case status == 408 || status == 429 || problem == "/problems/not-replicated" || problem == "/problems/shutting-down" ||
		problem == "/problems/store-unavailable" || problem == "/problems/store-nearly-full":
		return ErrUnavailable
	case status >= 500 && status != 501:
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

// The longest wait of one request. A dead gateway is noticed before the ticket in the wait queue expires. The same for
// several locks: between two requests it has none of them, and others go first.
const longestWait, longestWaitOfSeveral = 5 * time.Second, 20 * time.Second

// Lease is a lock that you hold, or several. Show FencingToken to what the lock protects. Of several locks each has a
// number of its own, in FencingTokens: then FencingToken is 0, and protects nothing.
type Lease struct {
	Key, Token    string
	Keys          []string
	FencingToken  int64
	FencingTokens map[string]int64
	Slot          int // From 1 on, if several may hold the lock. No other holder has it.
	mutex         sync.Mutex
	endsAt        time.Time
	ttl           time.Duration
	isOver        bool    // Then no renewal that is still on its way lengthens it.
	record        *record // Of a piece of work. A lock has none.
}

// What is told and known of a piece of work, besides the lease.
type record struct {
	fingerprint, contentType string
	body                     []byte
	earlier, maxResultBytes  int64
	stored                   *Result
}

// Result is what came of a piece of work. WasReplayed: another run has done it, whose FencingToken this is.
type Result struct {
	Body         []byte
	Status       *int
	ContentType  string
	WasReplayed  bool
	FencingToken int64
}

// EndsAt is when the lease ends, and never too late. While the machine sleeps, its clock may stand still.
func (l *Lease) EndsAt() time.Time {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.endsAt
}

// Check returns ErrLost from EndsAt on. It is right at once, also after the process stood still.
func (l *Lease) Check() error {
	if time.Now().Before(l.EndsAt()) {
		return nil
	}
	return &Error{Kind: ErrLost, Message: l.Key + ": the lease is over"}
}

// From now on it is not yours, which Check says before another can have the lock.
func (l *Lease) end() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.isOver = true; time.Now().Before(l.endsAt) {
		l.endsAt = time.Now()
	}
}

// Options are how long the lease is (30 s if you leave it out), how long to wait for the lock, a note for people, and
// how many may hold the lock at once (1 if you leave it out).
type Options struct {
	TTL, Wait time.Duration
	Owner     string
	Slots     int
}

// AnySlots is what readers say: so many may read at once, and nobody else writes.
const AnySlots = 1000

// Client asks the gateways at URLs, which share a store. Change its fields before you use it. For another CA than those
// of SSL_CERT_FILE, give it another HTTP.
type Client struct {
	URLs                       []string
	APIKey                     string
	RetryFor, TryFor, StoreFor time.Duration // StoreFor is for a result: else the longer of ttl and RetryFor.
	HTTP                       *http.Client
	mutex                      sync.Mutex
}

// New makes a client of URLs with commas, for "" of FENCEPOST_URL, and of FENCEPOST_API_KEY or FENCEPOST_API_KEY_FILE.
func New(urls string) (*Client, error) {
	c := &Client{APIKey: os.Getenv("FENCEPOST_API_KEY"), RetryFor: 10 * time.Second, TryFor: 3 * time.Second}
	c.HTTP = &http.Client{}
	if usual, isPlain := http.DefaultTransport.(*http.Transport); isPlain {
		own := usual.Clone() // Without HTTP/2: there each repetition would go down the same connection, also a dead one.
		own.ForceAttemptHTTP2, own.TLSNextProto = false, map[string]func(string, *tls.Conn) http.RoundTripper{}
		if own.TLSClientConfig != nil {
			own.TLSClientConfig.NextProtos = nil
		}
		c.HTTP.Transport = own
	}
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
	return c.AcquireAll(ctx, []string{key}, o)
}

// AcquireAll takes the locks of all these keys, or none.
func (c *Client) AcquireAll(ctx context.Context, keys []string, o Options) (*Lease, error) {
	lease, query := &Lease{Key: strings.Join(keys, ", "), Keys: append([]string(nil), keys...)}, url.Values{} // A copy.
	if o.Owner != "" {
		query.Set("owner", o.Owner)
	}
	if o.Slots != 0 {
		query.Set("slots", strconv.Itoa(o.Slots))
	}
	if err := c.take(ctx, lease, o, query); err != nil {
		return nil, err
	}
	return lease, nil
}

func (c *Client) take(ctx context.Context, lease *Lease, o Options, query url.Values) error {
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	if lease.Token, lease.ttl = fmt.Sprintf("%x", random), o.TTL; o.TTL == 0 {
		lease.ttl = 30 * time.Second
	}
	query.Set("ttl", inMs(lease.ttl))
	waitUntil := time.Now().Add(least(o.Wait, 1e5*time.Hour)) // Later ones would overflow.
	err := c.call(ctx, "PUT", lease, query, waitUntil.Add(c.RetryFor), waitUntil, true)
	isGranted := func() bool { return err == nil && (lease.record == nil || lease.record.stored == nil) }
	isLate := isGranted() && time.Until(lease.EndsAt()) < lease.ttl*2/3
	for isLate { // It waited. The same request says when the lease ends, or waits on if it is over.
		err = c.call(ctx, "PUT", lease, query, time.Now().Add(c.TryFor-least(0, -time.Until(waitUntil))), waitUntil, false)
		isLate = isGranted() && lease.Check() != nil && time.Now().Before(waitUntil)
	}
	var answer *Error
	// It was abandoned by this client, or the answer came late: the work has not begun.
	isOwn := errors.As(err, &answer) && answer.Yours || isGranted() && lease.Check() != nil
	isOpen := isOwn || err != nil && ctx.Err() != nil || errors.Is(err, ErrUnknown)
	if isOpen || errors.Is(err, ErrBusy) && (o.Wait > 0 || len(lease.Keys) > 1) { // It frees what it was not told of.
		_ = c.leave(lease, true)
	}
	if isOwn {
		return &Error{Kind: ErrUnavailable, Message: lease.Key + ": the lease was over before the work began"}
	}
	return err
}

func (c *Client) leave(lease *Lease, isClean bool) error {
	query := url.Values{}
	if lease.record != nil && isClean {
		query.Set("clean", "true")
	}
	lease.end()
	return c.each(context.Background(), "DELETE", lease, query, time.Now().Add(c.TryFor))
}

// Renew lengthens a lease to this time from now on.
func (c *Client) Renew(ctx context.Context, lease *Lease, ttl time.Duration) (failed error) {
	failed = c.each(ctx, "PATCH", lease, url.Values{"ttl": {inMs(ttl)}}, lease.EndsAt())
	if problem := new(Error); errors.As(failed, &problem) && errors.Is(failed, ErrLost) && problem.Status/100 == 4 {
		lease.end()
	}
	return failed
}

// The same of each lock. One that fails keeps none of the others from it.
func (c *Client) each(ctx context.Context, method string, l *Lease, query url.Values, until time.Time) (failed error) {
	var endsAt time.Time
	for _, key := range l.Keys {
		one := &Lease{Key: key, Keys: []string{key}, Token: l.Token, record: l.record}
		err := c.call(ctx, method, one, query, until, time.Time{}, false)
		if failed == nil || errors.Is(err, ErrLost) { // None hides another that is lost.
			failed = err
		}
		if endsAt.IsZero() || one.endsAt.Before(endsAt) {
			endsAt = one.endsAt
		}
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if method == "PATCH" && failed == nil && !l.isOver {
		l.endsAt = endsAt
	}
	return failed
}

// Release gives a lock back. If ctx has ended, it is still tried for TryFor: in a defer, it often has.
func (c *Client) Release(ctx context.Context, lease *Lease) error {
	if lease.Check() == nil {
		lease.end()
		err := c.each(ctx, "DELETE", lease, url.Values{}, time.Now().Add(c.RetryFor))
		if err == nil || ctx.Err() == nil {
			return err
		}
	}
	return c.leave(lease, false) // What is free by itself needs one try, too.
}

// Hold takes a lock, renews it during the work, and releases it. ErrLost: the lease, and with it the work's context.
func (c *Client) Hold(ctx context.Context, key string, o Options, work func(context.Context, *Lease) error) error {
	return c.HoldAll(ctx, []string{key}, o, work)
}

// HoldAll does the same with the locks of all these keys, or of none.
func (c *Client) HoldAll(ctx context.Context, keys []string, o Options,
	work func(context.Context, *Lease) error) error {
	lease, err := c.AcquireAll(ctx, keys, o)
	if err != nil {
		return err
	}
	working, stop := c.renews(ctx, lease)
	var over, released error
	failed := func() error {
		// Also if the work panics, or ends its goroutine.
		defer func() { stop(); over, released = lease.Check(), c.Release(context.Background(), lease) }()
		return work(working, lease)
	}()
	switch {
	case over != nil && failed != nil: // Perhaps only because its context was canceled.
		return &Error{Kind: ErrLost, Message: fmt.Sprintf("%v. The work returned: %v", over, failed)}
	case over != nil:
		return over
	case failed != nil:
		return failed // It says more than what the release does.
	case errors.Is(released, ErrUnknown):
		return nil
	}
	return released
}

// Renews until it is stopped, also once ctx has ended: the work may take a while to end. A loss cancels its context.
func (c *Client) renews(ctx context.Context, lease *Lease) (context.Context, func()) {
	working, cancel := context.WithCancel(ctx)
	renewing, end := context.WithCancel(context.Background())
	stop := func() { cancel(); end() }
	go func() {
		for renewing.Err() == nil {
			select {
			case <-renewing.Done():
			case <-time.After(least(lease.ttl/3, time.Until(lease.EndsAt()))):
				inTime, over := context.WithDeadline(renewing, lease.EndsAt())
				_ = c.Renew(inTime, lease, lease.ttl)
				over()
				if renewing.Err() == nil && lease.Check() != nil {
					lease.end()
					stop()
				}
			}
		}
	}()
	return working, stop
}

// The same request with the same token until it is answered. A gateway that fails is asked last from then on.
func (c *Client) call(ctx context.Context, method string, l *Lease, query url.Values, until, waitUntil time.Time,
	isNew bool) error {
	failed, isDoubtful, isReached, isWrong := 0, !isNew, !isNew, true
	query["key"] = l.Keys
	tryFor, path, doubtful, longest := c.TryFor, "/lock", []string(nil), longestWait
	if len(l.Keys) > 1 {
		longest = longestWaitOfSeveral
	}
	if l.record != nil {
		path = "/once"
	}
	if method == "PATCH" { // One gateway that hangs must not use up a lease that another one can renew.
		tryFor = least(tryFor, time.Until(until)/2)
	}
	for {
		c.mutex.Lock()
		base, count, sent := c.URLs[0], len(c.URLs), time.Now()
		c.mutex.Unlock()
		wait := least(longest, waitUntil.Sub(sent))
		if query.Del("wait"); wait > 0 && (isNew || l.record == nil) {
			query.Set("wait", inMs(wait))
		} else {
			wait = 0
		}
		address, timeout := base+path+"?"+query.Encode(), least(until.Sub(sent), tryFor+wait)
		status, text, header := c.send(ctx, method, address, l, timeout)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		seconds, _ := strconv.Atoi(header.Get("Retry-After"))
		after := time.Duration(seconds) * time.Second
		if l.accepts(method, sent, status, text, header) {
			return nil
		}
		problem := Error{RetryAfter: after}
		if json.Unmarshal(text, &problem) != nil || !strings.HasPrefix(problem.Type, "/problems/") {
			problem = Error{RetryAfter: after, Detail: fmt.Sprintf("%.300s", text)}
			if status/100 == 2 { // It may be another's grant, with its lease token.
				problem.Detail = strconv.Itoa(status)
			} else if status == http.StatusBadRequest && strings.HasPrefix(base, "http:") && tlsOnly.Match(text) {
				status = -1
			}
		}
		isWrong = isWrong && status < 0
		problem.Kind = kindOf(status, problem.Type)
		problem.Message = fmt.Sprintf("%s %s at %s: %s", method, l.Key, base, problem.Detail)
		isDoubtful, isReached = isDoubtful || problem.Kind == ErrUnknown, isReached || status > 0
		pause, isBusy := 200*time.Millisecond, problem.Kind == ErrBusy || problem.Kind == ErrAbandoned
		if isBusy && !problem.Yours && time.Until(waitUntil) > 100*time.Millisecond { // It need not wait for itself.
			if problem.Position > 0 {
				continue
			}
		} else if problem.Parameter == "wait" && wait > 100*time.Millisecond {
			longest = wait / 2 // It was too long for the --max-wait of the gateway.
			continue
		} else if isBusy || errors.Is(&problem, ErrRefused) || errors.Is(&problem, ErrLost) {
			if doubtful != nil && method == "PUT" { // Those may have granted it, or a late copy still takes it.
				others := &Client{URLs: doubtful, APIKey: c.APIKey, TryFor: c.TryFor, HTTP: c.HTTP}
				if isBusy { // This one answers, and tells it to the store that they share.
					others = c
				}
				_ = others.leave(l, isNew || problem.Yours)
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
				} else if method == "PATCH" && time.Now().After(until) { // Then the lease is over.
					problem.Kind = ErrLost
				} else if isDoubtful {
					problem.Kind = ErrUnknown
				}
				return &problem
			} else if !isRound {
				continue
			} else if after > 0 { // A gateway may be well long before it said.
				pause = least(after, pause+time.Until(until)/4)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(least(pause, time.Until(until))):
		}
	}
}

// Whether this is the gateway's whole answer to this request. A proxy may answer 200 with anything, and 204.
func (l *Lease) accepts(method string, sent time.Time, status int, text []byte, header http.Header) bool {
	var grant struct {
		Key            string `json:"key"`
		Token          string `json:"token"`
		FencingToken   int64  `json:"fencing_token"`
		TTLMs          int64  `json:"ttl_ms"`
		KeptMs         int64  `json:"kept_ms"`
		Slot           int    `json:"slot"`
		Earlier        *int64 `json:"earlier"`
		MaxResultBytes int64  `json:"max_result_bytes"`
		Locks          []struct {
			Key          string `json:"key"`
			FencingToken int64  `json:"fencing_token"`
		} `json:"locks"` // Of several.
	}
	isBegin := l.record != nil && method == "PUT"
	if method == "DELETE" {
		return status == http.StatusNoContent && header.Get("X-Request-Id") != "" // Each answer of a gateway has that.
	} else if isBegin && status == http.StatusOK { // That is somebody's result.
		return header.Get("Lease-Token") == l.Token && l.record.isReplayed(text, header)
	} else if status != http.StatusCreated && (isBegin || status != http.StatusOK) {
		return false
	}
	isWhole := json.Unmarshal(text, &grant) == nil && (grant.Earlier != nil || !isBegin) &&
		(grant.Token == l.Token || method == "POST")
	numbers := map[string]int64{grant.Key: grant.FencingToken}
	if len(l.Keys) > 1 {
		numbers = map[string]int64{}
		for _, lock := range grant.Locks {
			numbers[lock.Key] = lock.FencingToken
		}
	}
	for _, key := range l.Keys {
		isWhole = isWhole && numbers[key] > 0
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if method == "POST" {
		return isWhole && grant.KeptMs > 0
	} else if !isWhole || grant.TTLMs <= 0 {
		return false
	} else if method == "PUT" { // A renewal changes none of these, and the work may be reading them.
		l.FencingToken, l.FencingTokens, l.Slot = grant.FencingToken, numbers, grant.Slot
	}
	if !l.isOver {
		l.endsAt = sent.Add(time.Duration(grant.TTLMs) * time.Millisecond)
	}
	if isBegin {
		l.record.earlier, l.record.maxResultBytes = *grant.Earlier, grant.MaxResultBytes
	}
	return true
}

func (r *record) isReplayed(body []byte, header http.Header) bool {
	number, err := strconv.ParseInt(header.Get("Fencing-Token"), 10, 64)
	isWhole := header.Get("Once-Bytes") == strconv.Itoa(len(body)) // With another length, it was broken off.
	if header.Get("Once") != "replayed" || err != nil || !isWhole {
		return false
	}
	r.stored = &Result{Body: body, ContentType: header.Get("Once-Content-Type"), WasReplayed: true, FencingToken: number}
	if status, err := strconv.Atoi(header.Get("Once-Status")); err == nil {
		r.stored.Status = &status
	}
	return true
}

// The status, the text, the headers. Status 0: nothing was sent. -1: and the settings are wrong. 1: the answer is lost.
func (c *Client) send(ctx context.Context, method, address string, l *Lease, timeout time.Duration) (
	status int, text []byte, header http.Header) {
	var isSent, isWrong, isTold atomic.Bool // By a transport that is not net/http's, perhaps nothing is told.
	ctx, cancel := context.WithTimeout(ctx, -least(-timeout, -100*time.Millisecond))
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:      func(string) { isTold.Store(true) },
		WroteHeaders: func() { isSent.Store(true) },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
			var ended net.Error // Of TLS, a connection that ends is an outage, and all else is a wrong setting.
			isOutage := errors.As(err, &ended) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
			isWrong.Store(err != nil && !isOutage && !errors.Is(err, context.Canceled))
		},
	})
	var body io.Reader
	if method == "POST" {
		body = bytes.NewReader(l.record.body)
	}
	request, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return -1, []byte(err.Error()), nil
	}
	request.Header.Set("Lease-Token", l.Token)
	if l.record != nil && method == "PUT" && l.record.fingerprint != "" {
		request.Header.Set("Once-Fingerprint", l.record.fingerprint)
	} else if method == "POST" && l.record.contentType != "" {
		request.Header.Set("Content-Type", l.record.contentType)
	}
	if c.APIKey != "" {
		request.Header.Set("Authorization", "Bearer "+c.APIKey)
	}
	asked := *c.HTTP // A request that is sent on as another one, or to another host, would mean something else.
	asked.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := asked.Do(request)
	if err == nil {
		defer answer.Body.Close()
		if text, err = io.ReadAll(answer.Body); err == nil {
			return answer.StatusCode, text, answer.Header
		}
	}
	if c.HTTP.Transport != nil { // Without one of its own, they are those of the whole program.
		c.HTTP.CloseIdleConnections() // They may be as dead: the next attempt makes a new one.
	}
	var noPort *net.AddrError
	if status = 1; isWrong.Load() || errors.As(err, &noPort) || strings.Contains(err.Error(), "invalid header field") {
		status = -1
	} else if isTold.Load() && !isSent.Load() {
		status = 0
	}
	return status, []byte(err.Error()), nil
}

func inMs(span time.Duration) string { return fmt.Sprintf("%dms", span.Milliseconds()) }
func least(one, other time.Duration) time.Duration {
	if one < other {
		return one
	}
	return other
}
