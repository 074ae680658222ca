package alerts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/alerting"
)

// WebhooksVariable is the environment variable with URLs to which alerts are posted, with spaces between them, for
// those that are secrets: arguments can be read by all users of a machine.
const WebhooksVariable = "SPILLWAY_ALERT_WEBHOOKS"

const (
	// postWait bounds one request.
	postWait = 10 * time.Second
	// answerBytes is how much of an answer is read, so that its connection can be used again.
	answerBytes = 64 << 10
	// idHeader carries the alert's ID, by which a receiver tells a second delivery from a second alert.
	idHeader = "Spillway-Alert"
)

// CheckWebhook says why alerts cannot be posted to address; nil when they can. The error never repeats the address: its
// path and query may be secrets.
func CheckWebhook(address string) error {
	_, err := parseWebhook(address)
	return err
}

func parseWebhook(address string) (*url.URL, error) {
	parsed, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, errors.New("webhook: not a URL; write one such as https://hooks.example.com/alerts")
	case !strings.EqualFold(parsed.Scheme, "http") && !strings.EqualFold(parsed.Scheme, "https"):
		return nil, errors.New("webhook: its URL must begin with http:// or https://")
	case parsed.Hostname() == "":
		return nil, errors.New("webhook: its URL names no host; write one such as https://hooks.example.com/alerts")
	}
	return parsed, nil
}

// webhook posts alerts to one URL.
type webhook struct {
	address *url.URL
	header  http.Header
	client  *http.Client
}

func newWebhook(address string, options Options) (*webhook, error) {
	parsed, err := parseWebhook(address)
	if err != nil {
		return nil, err
	}
	client := &http.Client{}
	if options.Client != nil {
		own := *options.Client
		client = &own
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &webhook{address: parsed, header: options.Header, client: client}, nil
}

// laterError is a refusal for now, with the time that the receiver asks for; 0 when it names none.
type laterError struct {
	status int
	after  time.Duration
}

func (e *laterError) Error() string { return "the receiver answered " + strconv.Itoa(e.status) }

func (w *webhook) name() string { return w.address.Host }

func (w *webhook) deliver(ctx context.Context, alert alerting.Alert, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, postWait)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.address.String(), bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%w: the request cannot be made", errFinal)
	}
	for name, values := range w.header {
		request.Header[http.CanonicalHeaderKey(name)] = values
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(idHeader, alert.ID)
	response, err := w.client.Do(request)
	if err != nil {
		return withoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()            // the answer is of no interest, so its end is not either
	_, _ = io.CopyN(io.Discard, response.Body, answerBytes) // whatever it says, the status counts
	return deliveryError(response)
}

// deliveryError reads an answer: 2xx is delivered, 429 and 5xx are worth another try, everything else is not.
func deliveryError(response *http.Response) error {
	switch status := response.StatusCode; {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusTooManyRequests || status >= 500:
		seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
		if err != nil || seconds < 0 || seconds > 3600 {
			seconds = 0
		}
		return &laterError{status: status, after: time.Duration(seconds) * time.Second}
	case status >= 300 && status < 400:
		return fmt.Errorf("%w: the receiver answered %d, a redirect; give its new URL", errFinal, status)
	default:
		return fmt.Errorf("%w: the receiver answered %d", errFinal, status)
	}
}

// withoutURL takes the URL out of an error of the client.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
