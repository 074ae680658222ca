package exchange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/spillway-ml/spillway/activities"
)

const (
	// mostMessage bounds a message that is sent to a handler, in bytes.
	mostMessage = 256 << 20
	// longestWait bounds for how long a handler waits for what is missing.
	longestWait = 10 * time.Second
	// handlerRoom bounds what a handler holds of messages that are sent and answered, in bytes: all of them together.
	handlerRoom = mostMessage
)

// errBusy says that others took a handler's room for as long as the request waited.
var errBusy = errors.New("the server has its hands full of other messages; ask again")

// room is what a handler holds of messages.
type room struct {
	size int64
	free *semaphore.Weighted
}

// take waits for room for bytes; more than all of it is all of it.
func (r *room) take(ctx context.Context, bytes int64) (giveBack func(), err error) {
	bytes = min(max(bytes, 0), r.size)
	if err := r.free.Acquire(ctx, bytes); err != nil {
		return nil, errors.Join(errBusy, err)
	}
	return func() { r.free.Release(bytes) }, nil
}

// reading is the context in which what is found and answered takes room, until it is given back.
func (r *room) reading(ctx context.Context) (found context.Context, giveBack func()) {
	taken := func() {}
	return activities.WithFound(ctx, func(bytes int64) error {
		release, err := r.take(ctx, bytes)
		if err == nil {
			taken = release
		}
		return err
	}), func() { taken() }
}

// asked is the body of the request for a mean.
type asked struct {
	Names []string      `json:"names"`
	Wait  time.Duration `json:"wait_ns"`
}

// Handler serves a board, and adds up where it does: PUT /GROUP/NAME answers 201 where it was the first and else 200,
// GET /GROUP/NAME the message or 404, DELETE /GROUP?name=... removes, and POST /GROUP/mean answers the mean of a list
// of messages, or 202 and the indices of those that are missing. It holds 256 MiB of messages at a time; a request
// waits for room, and is answered 503 where its context ends before. Who may ask is not its business.
func Handler(board activities.Board) http.Handler { return handler(board, handlerRoom) }

func handler(board activities.Board, size int64) http.Handler {
	room := &room{size, semaphore.NewWeighted(size)}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /{group}/{name}", func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 0 || r.ContentLength > mostMessage {
			http.Error(w, fmt.Sprintf("a message of %d bytes: say how many, at most %d", r.ContentLength, mostMessage),
				http.StatusRequestEntityTooLarge)
			return
		}
		giveBack, err := room.take(r.Context(), r.ContentLength)
		if err != nil {
			refuse(w, err)
			return
		}
		defer giveBack()
		data, err := io.ReadAll(r.Body)
		first := false
		if err == nil {
			first, err = board.Post(r.Context(), r.PathValue("group"), r.PathValue("name"), data)
		}
		if err == nil && first {
			w.WriteHeader(http.StatusCreated)
		}
		refuse(w, err)
	})
	mux.HandleFunc("GET /{group}/{name}", func(w http.ResponseWriter, r *http.Request) {
		ctx, giveBack := room.reading(r.Context())
		defer giveBack()
		data, err := board.Look(ctx, r.PathValue("group"), r.PathValue("name"))
		answer(w, data, err)
	})
	mux.HandleFunc("DELETE /{group}", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, board.Wipe(r.Context(), r.PathValue("group"), r.URL.Query()["name"]...))
	})
	if server, adds := board.(Averager); adds {
		mux.HandleFunc("POST /{group}/mean", func(w http.ResponseWriter, r *http.Request) {
			var wanted asked
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&wanted); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			ctx, giveBack := room.reading(r.Context())
			defer giveBack()
			sum, missing, err := server.Mean(ctx, r.PathValue("group"), wanted.Names,
				min(wanted.Wait, longestWait))
			if err == nil && len(missing) > 0 {
				w.WriteHeader(http.StatusAccepted)
				_ = json.NewEncoder(w).Encode(missing) // who asked asks again
				return
			}
			answer(w, sum.encode(), err)
		})
	}
	return mux
}

func answer(w http.ResponseWriter, data []byte, err error) {
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // who asked has gone
}

// refuse says what was wrong, so that the client's error is what the board's would have been.
func refuse(w http.ResponseWriter, err error) {
	switch {
	case err == nil:
	case errors.Is(err, activities.ErrMissing):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, activities.ErrNoRoom):
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
	case errors.Is(err, errBusy):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
}

// path is that of a group, and of a name in it.
func path(group, name string) string {
	if name == "" {
		return url.PathEscape(group)
	}
	return url.PathEscape(group) + "/" + url.PathEscape(name)
}
