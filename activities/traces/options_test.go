package traces_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/traces"
)

func TestTheStandardVariablesSayWhereTracesGo(t *testing.T) {
	t.Parallel()
	const all, own = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	for name, c := range map[string]struct {
		environment map[string]string
		want        *traces.Options // nil where no traces are wanted
	}{
		"nothing is set": {nil, nil},
		"a base gets the path": {
			map[string]string{all: "http://c:4318/"},
			&traces.Options{Endpoint: "http://c:4318/v1/traces"},
		},
		"one for traces is as it is": {
			map[string]string{all: "http://c:4318", own: "https://d/x"},
			&traces.Options{Endpoint: "https://d/x"},
		},
		"the SDK is disabled":    {map[string]string{all: "http://c:4318", "OTEL_SDK_DISABLED": "True"}, nil},
		"no exporter for traces": {map[string]string{all: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, nil},
		"the protocol is the one here": {
			map[string]string{own: "http://c/x", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
			&traces.Options{Endpoint: "http://c/x"},
		},
		"a service and headers": {
			map[string]string{
				own: "http://c/x", "OTEL_SERVICE_NAME": "ml",
				"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%201, x=a=b,",
			},
			&traces.Options{
				Endpoint: "http://c/x", Service: "ml",
				Headers: map[string]string{"Authorization": "Bearer 1", "x": "a=b"},
			},
		},
	} {
		got, wanted, err := traces.FromEnvironment(func(name string) string { return c.environment[name] })
		if err != nil || wanted != (c.want != nil) {
			t.Errorf("%s: %v, %t", name, err, wanted)
			continue
		}
		if len(got.Headers) == 0 {
			got.Headers = nil
		}
		if c.want != nil {
			if diff := cmp.Diff(*c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

func TestBadVariablesAreNamedWithoutTheirSecrets(t *testing.T) {
	t.Parallel()
	const own = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	for name, environment := range map[string]map[string]string{
		own:                              {own: "ftp://user:secret@c/x"},
		"OTEL_EXPORTER_OTLP_ENDPOINT":    {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost"},
		"OTEL_EXPORTER_OTLP_PROTOCOL":    {own: "http://c/x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
		"OTEL_EXPORTER_OTLP_HEADERS":     {own: "http://c/x", "OTEL_EXPORTER_OTLP_HEADERS": "secret"},
		"OTEL_EXPORTER_OTLP_TRACES_HEAD": {own: "http://c/x", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=%zzsecret"},
	} {
		_, wanted, err := traces.FromEnvironment(func(name string) string { return environment[name] })
		if !errors.Is(err, traces.ErrOptions) || wanted || !strings.Contains(err.Error(), name) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %t", name, err, wanted)
		}
	}
	if _, err := traces.New(t.Context(), traces.Options{}); !errors.Is(err, traces.ErrOptions) {
		t.Errorf("no endpoint: %v", err)
	}
}

func FuzzFromEnvironment(f *testing.F) {
	f.Add("http://c:4318", "a=b,c=%20d")
	f.Add("http://[::1", "=")
	f.Fuzz(func(t *testing.T, endpoint, headers string) {
		options, wanted, err := traces.FromEnvironment(func(name string) string {
			switch name {
			case "OTEL_EXPORTER_OTLP_ENDPOINT":
				return endpoint
			case "OTEL_EXPORTER_OTLP_HEADERS":
				return headers
			default:
				return ""
			}
		})
		if err != nil && !errors.Is(err, traces.ErrOptions) || wanted && options.Validate() != nil {
			t.Errorf("%q, %q: %v, %v", endpoint, headers, options, err)
		}
	})
}
