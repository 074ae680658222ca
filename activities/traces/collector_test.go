package traces_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// receiver is a collector: it takes spans over OTLP/HTTP as the protocol says and keeps them.
type receiver struct {
	*httptest.Server

	hang chan struct{} // when not nil, every request waits until it is closed

	mu      sync.Mutex
	refuse  bool              // guarded by mu
	headers http.Header       // guarded by mu: of the last request
	service map[string]string // guarded by mu: the resource of the last request
	spans   []*otlp.Span      // guarded by mu
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(r.take))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) take(w http.ResponseWriter, request *http.Request) {
	if r.hang != nil {
		<-r.hang
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse {
		w.WriteHeader(http.StatusBadRequest) // which is not tried again
		return
	}
	body := io.Reader(request.Body)
	if request.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unpacked
	}
	data, err := io.ReadAll(body)
	var message collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(data, &message)
	}
	if err != nil || request.Method != http.MethodPost || request.URL.Path != "/v1/traces" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	r.headers = request.Header.Clone()
	for _, resource := range message.GetResourceSpans() {
		r.service = attributes(resource.GetResource().GetAttributes())
		for _, in := range resource.GetScopeSpans() {
			r.spans = append(r.spans, in.GetSpans()...)
		}
	}
}

// taken returns the spans by name and, where several share one, in the order in which they came.
func (r *receiver) taken() map[string][]*otlp.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	byName := map[string][]*otlp.Span{}
	for _, span := range r.spans {
		byName[span.GetName()] = append(byName[span.GetName()], span)
	}
	return byName
}

// attributes are the attributes as text.
func attributes(list []*common.KeyValue) map[string]string {
	all := map[string]string{}
	for _, one := range list {
		value := one.GetValue()
		switch value.GetValue().(type) {
		case *common.AnyValue_StringValue:
			all[one.GetKey()] = value.GetStringValue()
		default:
			all[one.GetKey()] = value.String()
		}
	}
	return all
}

func nanos(at time.Time) uint64 { return uint64(at.UnixNano()) }
