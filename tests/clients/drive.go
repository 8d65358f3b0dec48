// Does what a test says, line by line, with the client in examples/clients, and says what came of it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"example.com/drive/fencepost"
)

var (
	ctx    = context.Background()
	input  = bufio.NewScanner(os.Stdin)
	client *fencepost.Client
	lease  *fencepost.Lease
	// Of the context that the one who holds a lock was given.
	cancelHold context.CancelFunc
	errFailed  = errors.New("what work may return")
	words      = map[error]string{
		fencepost.ErrNothingDone: "nothingdone",
		fencepost.ErrAbandoned:   "abandoned",
		errFailed:                "failed",
		fencepost.ErrBusy:        "busy",
		fencepost.ErrLost:        "lost",
		fencepost.ErrRefused:     "refused",
		fencepost.ErrUnavailable: "unavailable",
		fencepost.ErrUnknown:     "unknown",
	}
	// These are of a kind above too.
	special = map[error]string{fencepost.ErrMismatch: "mismatch", fencepost.ErrSuperseded: "superseded"}
)

func said() []string {
	if !input.Scan() {
		os.Exit(0)
	}
	return strings.Split(input.Text(), " ")
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func seconds(text string) time.Duration {
	return time.Duration(must(strconv.ParseFloat(text, 64)) * float64(time.Second))
}

func times(words []string) fencepost.Options {
	return fencepost.Options{TTL: seconds(words[2]), Wait: seconds(words[3])}
}

func work(ctx context.Context, held *fencepost.Lease) error {
	lease = held
	fmt.Println("granted", held.FencingToken)
	for {
		switch word := said()[0]; word {
		case "leave":
			return nil
		case "fail":
			return errFailed
		case "panic":
			panic(errFailed)
		case "exit":
			runtime.Goexit()
		case "wind-down": // As at a shutdown, where the work still has to end.
			cancelHold()
			fmt.Println("winds down")
			continue
		case "lost":
			<-ctx.Done()
		case "ended": // As a command is killed by its context.
			<-ctx.Done()
			return errFailed
		}
		if err := held.Check(); err != nil {
			return err
		}
		fmt.Println("held")
	}
}

// What work returns: much, what no request can carry, what is like a type, nothing with a status, or a text.
func made(word string, place *fencepost.Place) *fencepost.Result {
	created, nothing, unknown := 201, 204, 1000
	switch word {
	case "much":
		return &fencepost.Result{Body: make([]byte, place.MaxResultBytes+1)}
	case "unsent":
		return &fencepost.Result{Body: []byte(word), Status: &unknown, ContentType: "text\n/plain"}
	case "trimmed":
		return &fencepost.Result{Body: []byte(word), Status: &created, ContentType: "application/json\n"}
	case "empty":
		return &fencepost.Result{Status: &nothing}
	}
	return &fencepost.Result{Body: []byte(word), Status: &created, ContentType: "application/json"}
}

func doesNothing(context.Context, *fencepost.Place) (*fencepost.Result, error) {
	return nil, fmt.Errorf("the card is unknown: %w", fencepost.ErrNothingDone)
}

func once(words []string) (string, error) {
	options := fencepost.OnceOptions{Options: times(words), Keep: time.Hour, Fingerprint: words[4]}
	options.Owner, options.NoTakeover = "drive", words[len(words)-1] == "keep-off"
	work := func(ctx context.Context, place *fencepost.Place) (*fencepost.Result, error) {
		fmt.Println("works", place.Earlier, place.FencingToken)
		for {
			switch word := said()[0]; word {
			case "fail":
				return nil, errFailed
			case "nothing":
				return doesNothing(ctx, place)
			case "inside":
				return client.Once(ctx, words[1]+"/inside", fencepost.OnceOptions{}, doesNothing)
			case "panic":
				panic(errFailed)
			case "lost":
				<-ctx.Done()
				fmt.Println("lost")
			default:
				return made(word, place), nil
			}
		}
	}
	result, err := client.Once(ctx, words[1], options, work)
	if err != nil {
		return "", err
	}
	how, status, kind := "made", "None", "None"
	if result.WasReplayed {
		how = "replayed"
	}
	if result.Status != nil {
		status = fmt.Sprint(*result.Status)
	}
	if result.ContentType != "" {
		kind = result.ContentType
	}
	return fmt.Sprintf("%s %s %s %s %d", how, result.Body, status, kind, result.FencingToken), nil
}

// The work may panic, or end its goroutine.
func survives(call func() error) error {
	ended := make(chan error, 1)
	go func() {
		err := errFailed
		defer func() {
			if why := recover(); why != nil && why != errFailed {
				panic(why)
			}
			ended <- err
		}()
		err = call()
	}()
	return <-ended
}

func do(words []string) (string, error) {
	var err error
	switch words[0] {
	case "acquire":
		if lease, err = client.Acquire(ctx, words[1], times(words)); err != nil {
			return "", err
		}
		return fmt.Sprint("granted ", lease.FencingToken), nil
	case "share":
		options := fencepost.Options{TTL: seconds(words[2]), Slots: fencepost.AnySlots}
		if slots, err := strconv.Atoi(words[3]); err == nil {
			options.Slots = slots
		}
		if lease, err = client.Acquire(ctx, words[1], options); err != nil {
			return "", err
		}
		return fmt.Sprint("granted ", lease.FencingToken, " ", lease.Slot), nil
	case "both":
		if lease, err = client.AcquireAll(ctx, words[1:3], times(words[1:])); err != nil {
			return "", err
		}
		return fmt.Sprint("granted ", lease.FencingTokens[words[1]], " ", lease.FencingTokens[words[2]]), nil
	case "renew":
		return "renewed", client.Renew(ctx, lease, seconds(words[1]))
	case "check":
		return "held", lease.Check()
	case "release":
		return "released", client.Release(ctx, lease)
	case "release-late": // As a deferred release, after the request that it belongs to.
		ended, end := context.WithCancel(ctx)
		end()
		return "released", client.Release(ended, lease)
	case "hold":
		var holding context.Context
		holding, cancelHold = context.WithCancel(ctx)
		defer cancelHold()
		return "released", survives(func() error { return client.Hold(holding, words[1], times(words), work) })
	case "once":
		text := ""
		err := survives(func() (err error) {
			text, err = once(words)
			return err
		})
		return text, err
	case "cancel":
		waiting, cancel := context.WithCancel(ctx)
		canceled := make(chan error)
		go func() {
			_, err := client.Acquire(waiting, words[1], times(words))
			canceled <- err
		}()
		said()
		cancel()
		if err := <-canceled; !errors.Is(err, context.Canceled) {
			panic(err)
		}
		return "canceled", nil
	}
	panic(words)
}

func main() {
	made, err := fencepost.New("")
	if errors.Is(err, fencepost.ErrRefused) {
		fmt.Println("refused")
		fmt.Println(err)
		os.Exit(1)
	}
	client = must(made, err)
	client.RetryFor, client.TryFor = seconds(os.Getenv("RETRY_FOR_S")), seconds(os.Getenv("TRY_FOR_S"))
	var last error
	for {
		asked := said()
		var answer *fencepost.Error
		if asked[0] == "why" && errors.As(last, &answer) {
			parts := []any{answer.Status, answer.Type, answer.Detail, answer.Holder, answer.RetryAfter.Seconds(), answer.Error()}
			fmt.Println(string(must(json.Marshal(parts))))
			continue
		}
		if asked[0] == "number" && errors.As(last, &answer) {
			fmt.Println(answer.Successor)
			continue
		}
		text, err := do(asked)
		if err != nil {
			last, text = err, ""
			for _, kinds := range []map[error]string{words, special} {
				for kind, word := range kinds {
					if errors.Is(err, kind) {
						text = word
					}
				}
			}
		}
		if text == "" {
			panic(err)
		}
		fmt.Println(text)
	}
}
