package traces

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"
)

// ErrOptions says that options make no sense.
var ErrOptions = errors.New("bad options")

// Options are where traces go. The zero value of a field means its default.
type Options struct {
	// Endpoint is the URL of the collector's traces, such as http://127.0.0.1:4318/v1/traces. It is needed.
	Endpoint string
	// Headers go with every request: most services want a token. They are never logged.
	Headers map[string]string
	// Service is how this engine is named in traces; "spillway" by default. Instance tells several engines apart.
	Service, Instance string
	// Since is when this process began. Events that happened before are remembered, and not exported: the process before
	// did that. The zero time exports everything that the stream still has.
	Since time.Time
	// Logger is told, once each time, that the collector stops and begins taking spans; nil discards.
	Logger *slog.Logger
}

// Validate explains the first thing that makes no sense, with an error that wraps ErrOptions.
func (o Options) Validate() error {
	const hint = "give a URL such as http://127.0.0.1:4318/v1/traces"
	address, err := url.Parse(o.Endpoint)
	switch {
	case o.Endpoint == "":
		return fmt.Errorf("%w: no endpoint for traces; %s", ErrOptions, hint)
	case err != nil:
		return fmt.Errorf("%w: the endpoint for traces is no URL; %s", ErrOptions, hint) // the URL may hold a password
	case address.Host == "" || address.Scheme != "http" && address.Scheme != "https":
		return fmt.Errorf("%w: the endpoint for traces is %q; %s", ErrOptions, address.Redacted(), hint)
	default:
		return nil
	}
}

// FromEnvironment reads the standard variables of OpenTelemetry
// (https://opentelemetry.io/docs/specs/otel/protocol/exporter/) as getenv gives them; wanted is false where none of
// them asks for traces. An error wraps ErrOptions and names the variable.
func FromEnvironment(getenv func(string) string) (options Options, wanted bool, err error) {
	const forTraces, forAll = "OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"
	first := func(name string) (variable, value string) {
		if value = getenv(forTraces + name); value != "" {
			return forTraces + name, value
		}
		return forAll + name, getenv(forAll + name)
	}
	variable, endpoint := first("ENDPOINT")
	if endpoint == "" || strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") ||
		getenv("OTEL_TRACES_EXPORTER") == "none" {
		return Options{}, false, nil
	}
	if name, protocol := first("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return Options{}, false, fmt.Errorf("%w: %s is %q; spillway speaks http/protobuf, on port 4318 of most collectors",
			ErrOptions, name, protocol)
	}
	if !strings.HasPrefix(variable, forTraces) {
		endpoint = strings.TrimSuffix(endpoint, "/") + "/v1/traces"
	}
	options = Options{Endpoint: endpoint, Service: getenv("OTEL_SERVICE_NAME")}
	name, headers := first("HEADERS")
	if options.Headers, err = parseHeaders(headers); err != nil {
		return Options{}, false, fmt.Errorf("%w: %s: %w", ErrOptions, name, err)
	}
	if err := options.Validate(); err != nil {
		return Options{}, false, fmt.Errorf("%s: %w", variable, err)
	}
	return options, true, nil
}

// parseHeaders reads "key=value,key=value", the values percent-encoded. Its errors show no value.
func parseHeaders(text string) (map[string]string, error) {
	headers := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, found := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		plain, err := url.PathUnescape(strings.TrimSpace(value))
		if !found || key == "" || err != nil {
			return nil, fmt.Errorf("the header %d is not key=value with the value percent-encoded", len(headers)+1)
		}
		headers[key] = plain
	}
	return headers, nil
}
