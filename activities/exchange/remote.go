package exchange

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

// Remote is a board behind a Handler, and adds up where that does. Its methods are safe for concurrent use.
type Remote struct {
	// Ask sends a request to a path below the handler's and returns the answer when it is one of success; else an error
	// that wraps activities.ErrMissing or activities.ErrNoRoom where the status says so.
	Ask func(ctx context.Context, method, path string, body io.Reader) (*http.Response, error)
}

var _ Averager = Remote{}

// Post leaves data under a name of a group; see activities.Board.
func (r Remote) Post(ctx context.Context, group, name string, data []byte) (first bool, err error) {
	status, _, err := r.ask(ctx, http.MethodPut, path(group, name), data)
	if err != nil {
		return false, fmt.Errorf("post %s for %s: %w", name, group, err)
	}
	return status == http.StatusCreated, nil
}

// Look returns what is under a name; see activities.Board.
func (r Remote) Look(ctx context.Context, group, name string) ([]byte, error) {
	_, data, err := r.ask(ctx, http.MethodGet, path(group, name), nil)
	if err != nil {
		return nil, fmt.Errorf("look at %s of %s: %w", name, group, err)
	}
	return data, nil
}

// namesAtOnce bounds the names in one request, which are in its URL.
const namesAtOnce = 200

// Wipe removes messages; see activities.Board.
func (r Remote) Wipe(ctx context.Context, group string, names ...string) error {
	for {
		some := names[:min(len(names), namesAtOnce)]
		query := url.Values{"name": some}
		if _, _, err := r.ask(ctx, http.MethodDelete, path(group, "")+"?"+query.Encode(), nil); err != nil {
			return fmt.Errorf("wipe the board of %s: %w", group, err)
		}
		if names = names[len(some):]; len(names) == 0 {
			return nil
		}
	}
}

// Mean waits for messages and returns their mean; see Averager. It waits at most 10 s.
func (r Remote) Mean(
	ctx context.Context, group string, names []string, patience time.Duration,
) (sum Vector, missing []int, err error) {
	body, err := json.Marshal(asked{Names: names, Wait: patience})
	var status int
	var data []byte
	if err == nil {
		status, data, err = r.ask(ctx, http.MethodPost, path(group, "mean"), body)
	}
	switch {
	case err != nil:
	case status == http.StatusAccepted:
		err = json.Unmarshal(data, &missing)
	default:
		sum, err = decode(data)
	}
	if err != nil {
		return Vector{}, nil, fmt.Errorf("ask for the mean of %s: %w", group, err)
	}
	for _, index := range missing {
		if index < 0 || index >= len(names) {
			return Vector{}, nil, fmt.Errorf("ask for the mean of %s: message %d of %d is missing", group, index, len(names))
		}
	}
	return sum, missing, nil
}

func (r Remote) ask(ctx context.Context, method, path string, body []byte) (status int, data []byte, err error) {
	answer, err := r.Ask(ctx, method, path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	if method == http.MethodGet {
		err = activities.Found(ctx, answer.ContentLength)
	}
	if err == nil {
		data, err = io.ReadAll(answer.Body)
	}
	return answer.StatusCode, data, err
}

var _ activities.Board = Remote{}
