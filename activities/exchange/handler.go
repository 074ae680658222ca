package exchange

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

const (
	// mostMessage bounds a message that is sent to a handler, in bytes.
	mostMessage = 256 << 20
	// longestWait bounds for how long a handler waits for what is missing.
	longestWait = 10 * time.Second
)

// asked is the body of the request for a mean.
type asked struct {
	Names []string      `json:"names"`
	Wait  time.Duration `json:"wait_ns"`
}

// Handler serves a board, and adds up where it does: PUT /GROUP/NAME answers 201 where it was the first and else 200,
// GET /GROUP/NAME the message or 404, DELETE /GROUP?name=... removes, and POST /GROUP/mean answers the mean of a list
// of messages, or 202 and the indices of those that are missing. Who may ask is not its business.
func Handler(board activities.Board) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /{group}/{name}", func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostMessage))
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
		data, err := board.Look(r.Context(), r.PathValue("group"), r.PathValue("name"))
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
			sum, missing, err := server.Mean(r.Context(), r.PathValue("group"), wanted.Names,
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
	large := (*http.MaxBytesError)(nil)
	switch {
	case err == nil:
	case errors.Is(err, activities.ErrMissing):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, activities.ErrNoRoom):
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
	case errors.As(err, &large):
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
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
