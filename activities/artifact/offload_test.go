package artifact_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

// payload is a payload of size bytes as the SDK's own converter makes it.
func payload(t *testing.T, size int) *commonpb.Payload {
	t.Helper()
	encoded, err := converter.GetDefaultDataConverter().ToPayload(strings.Repeat("x", size))
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// visit sends payloads through the SDK's own path for external storage: operation is "encode" (to the history) or
// "download" (from it).
func visit(
	t *testing.T, storage converter.ExternalStorage, operation string, payloads ...*commonpb.Payload,
) (*commonpb.Payloads, string) {
	t.Helper()
	handler, err := converter.NewPayloadHTTPHandler(converter.PayloadHTTPHandlerOptions{ExternalStorage: storage})
	if err != nil {
		t.Fatal(err)
	}
	body, err := protojson.Marshal(&commonpb.Payloads{Payloads: payloads})
	if err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/"+operation,
		bytes.NewReader(body)))
	if answer.Code != http.StatusOK {
		return nil, answer.Body.String()
	}
	result := new(commonpb.Payloads)
	if err := protojson.Unmarshal(answer.Body.Bytes(), result); err != nil {
		t.Fatal(err)
	}
	return result, ""
}

func TestOnlyLargePayloadsLeaveTheHistoryAndTheyComeBack(t *testing.T) {
	t.Parallel()
	store := open(t)
	storage := artifact.Offload(store, 0)
	small, large := payload(t, 1<<10), payload(t, 300<<10)
	history, failure := visit(t, storage, "encode", small, large, large)
	if failure != "" {
		t.Fatal(failure)
	}
	if got := history.GetPayloads(); !proto.Equal(got[0], small) || proto.Size(got[1]) > 1<<10 ||
		!proto.Equal(got[1], got[2]) {
		t.Errorf("history holds %d, %d and %d bytes; want the small payload, and two equal references", proto.Size(got[0]),
			proto.Size(got[1]), proto.Size(got[2]))
	}
	if names := stored(t, store); len(names) != 1 {
		t.Errorf("files for two equal payloads: %q, want one", names)
	}
	back, failure := visit(t, artifact.Offload(store, 1<<20), "download", history.GetPayloads()[1:]...)
	if failure != "" {
		t.Fatal(failure)
	}
	for i, got := range back.GetPayloads() {
		if !proto.Equal(got, large) {
			t.Errorf("payload %d came back changed", i)
		}
	}
}

func TestAPayloadThatIsDamagedOrGoneIsNeverHandedOut(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		harm func(file string) error
		want error
	}{
		"damaged": {func(file string) error { return os.WriteFile(file, []byte("other"), 0o600) }, activities.ErrCorrupt},
		"gone":    {os.Remove, activities.ErrMissing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			driver := artifact.Offload(store, 0).Drivers[0]
			claims, err := driver.Store(converter.StorageDriverStoreContext{Context: t.Context()},
				[]*commonpb.Payload{payload(t, 100<<10)})
			if err != nil {
				t.Fatal(err)
			}
			if err := row.harm(path(store, claims[0].ClaimData["digest"])); err != nil {
				t.Fatal(err)
			}
			got, err := driver.Retrieve(converter.StorageDriverRetrieveContext{Context: t.Context()}, claims)
			if !errors.Is(err, row.want) {
				t.Errorf("Retrieve = %v, %v, want %v", got, err, row.want)
			}
		})
	}
}

func TestAReferenceOfAnotherDriverIsRefused(t *testing.T) {
	t.Parallel()
	driver := artifact.Offload(open(t), 0).Drivers[0]
	for name, claim := range map[string]map[string]string{
		"no digest":      {"key": "bucket/object"},
		"a path instead": {"digest": "../../etc/passwd"},
	} {
		if got, err := driver.Retrieve(converter.StorageDriverRetrieveContext{Context: t.Context()},
			[]converter.StorageDriverClaim{{ClaimData: claim}}); err == nil {
			t.Errorf("%s: Retrieve = %v, want an error", name, got)
		}
	}
}
