package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// errAllTold says that the engine has told all lines.
var errAllTold = errors.New("all lines are told")

// Logs calls told with the lines that query selects and, with follow, with those that come until the run has ended;
// query.Until is not used. It returns nil when all are told, and otherwise when ctx ends or told returns an error; for
// [ErrStop] it returns nil. When the connection breaks it goes on where it was, and gives up after half a minute
// without an engine.
func (c *Client) Logs(ctx context.Context, query logs.Query, follow bool, told func(logs.Line) error) error {
	var seen logs.Seen
	once := func(kind string, data []byte) error {
		switch kind {
		case web.LogLine:
			var line logs.Line
			if err := json.Unmarshal(data, &line); err != nil {
				return fmt.Errorf("decode a line of the log: %w", err)
			}
			if seen.Again(line) {
				return nil
			}
			if err := told(line); err != nil {
				return &callerError{err}
			}
		case web.LogError:
			failed := web.Error{Status: http.StatusInternalServerError}
			if err := json.Unmarshal(data, &failed); err != nil {
				return fmt.Errorf("decode the end of the log: %w", err)
			}
			return &failed
		case web.LogEnd:
			return errAllTold
		}
		return nil
	}
	return c.persist(ctx, func() (heard bool, err error) {
		if resume := seen.Resume(); resume > 0 {
			query.From, query.Tail = resume, 0
		}
		heard, err = c.events(ctx, "/api/v1/runs/"+url.PathEscape(query.Run)+"/logs?"+logValues(query, follow).Encode(), nil,
			once)
		if errors.Is(err, errAllTold) {
			err = nil
		}
		return heard, err
	})
}

func logValues(query logs.Query, follow bool) url.Values {
	values := url.Values{"follow": {strconv.FormatBool(follow)}}
	set(values, "stage", query.Stage)
	set(values, "task", query.Task)
	if query.Attempt != 0 {
		values.Set("attempt", strconv.Itoa(query.Attempt))
	}
	if query.Tail != 0 {
		values.Set("tail", strconv.Itoa(query.Tail))
	}
	if query.From != 0 {
		values.Set("from", strconv.FormatUint(query.From, 10))
	}
	if !query.Since.IsZero() {
		values.Set("since", query.Since.Format(time.RFC3339Nano))
	}
	return values
}
