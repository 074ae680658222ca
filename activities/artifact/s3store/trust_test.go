package s3store_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"

	"github.com/spillway-ml/spillway/activities/artifact/s3store"
)

// TestAnEndpointOfAnAuthorityOfOnesOwnIsTrustedAsAWSIsToldTo has an endpoint whose certificate no machine trusts by
// itself: the client of AWS's configuration, which AWS_CA_BUNDLE makes, does; without it the error says how.
func TestAnEndpointOfAnAuthorityOfOnesOwnIsTrustedAsAWSIsToldTo(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	over := httptest.NewTLSServer(server.Config.Handler)
	t.Cleanup(over.Close)
	told := awshttp.NewBuildableClient().WithTransportOptions(func(to *http.Transport) {
		to.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
		to.TLSClientConfig.RootCAs.AddCert(over.Certificate())
	})
	there := func(l *s3store.Location, _ *s3store.Options) { l.Endpoint = over.URL }
	trusts := server.store(t, there, func(_ *s3store.Location, o *s3store.Options) { o.Client = told })
	if _, err := trusts.Put(t.Context(), strings.NewReader("over TLS")); err != nil {
		t.Errorf("with the authority: %v", err)
	}
	_, err := server.store(t, there).Put(t.Context(), strings.NewReader("over TLS"))
	if !errors.Is(err, s3store.ErrUnreachable) || !strings.Contains(err.Error(), "AWS_CA_BUNDLE") {
		t.Errorf("without the authority: %v, want %v and AWS_CA_BUNDLE", err, s3store.ErrUnreachable)
	}
}
