package devserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"

	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/rpc/encryption"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/spillway-ml/spillway/activities/access"
)

// authorizationHeader carries the token, in every request to Temporal.
const authorizationHeader = "authorization"

// maxAnswer bounds an answer of Temporal, in bytes; it is the bound of Temporal's SDK.
const maxAnswer = 128 << 20

// gate stands before Temporal's frontend and lets the owner in, who may do everything. Behind the inner frontend, which
// only Temporal's own services reach, everybody comes as the owner.
type gate struct{ keys *access.Keys }

var (
	_ authorization.ClaimMapper = gate{}
	_ authorization.Authorizer  = gate{}
)

// GetClaims tells by the token who calls; who does not show the owner's is nobody.
func (g gate) GetClaims(info *authorization.AuthInfo) (*authorization.Claims, error) {
	if token, _ := access.Bearer(info.AuthToken); !g.keys.IsToken(token) {
		return nil, nil //nolint:nilnil // nobody has no claims
	}
	return &authorization.Claims{Subject: "owner", System: authorization.RoleAdmin}, nil
}

// Authorize lets who has all rights do everything, and nobody anything. Its error is what the caller reads.
func (gate) Authorize(
	_ context.Context, claims *authorization.Claims, _ *authorization.CallTarget,
) (authorization.Result, error) {
	if claims == nil || claims.System&authorization.RoleAdmin == 0 {
		return authorization.Result{Decision: authorization.DecisionDeny}, status.Error(codes.PermissionDenied,
			"this engine's Temporal takes its owner's token only: send \"authorization: Bearer TOKEN\" with the token "+
				"in the file "+access.TokenFile+
				" of the state directory; for the temporal CLI set TEMPORAL_CONFIG_FILE to the file "+access.TemporalFile+" there")
	}
	return authorization.Result{Decision: authorization.DecisionAllow}, nil
}

// dial connects to the frontend with all rights, and these options besides.
func (g gate) dial(address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	header := "Bearer " + g.keys.Token()
	show := func(
		ctx context.Context, method string, request, answer any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		headers, _ := metadata.FromOutgoingContext(ctx) // a copy
		if headers == nil {
			headers = metadata.MD{}
		}
		headers.Set(authorizationHeader, header)
		return invoke(metadata.NewOutgoingContext(ctx, headers), method, request, answer, connection, options...)
	}
	connection, err := grpc.NewClient(address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // it does not leave this machine
		grpc.WithUnaryInterceptor(show),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to temporal at %s: %w", address, err)
	}
	return connection, nil
}

// innerName is the name under which Temporal's services know each other.
const innerName = "temporal.spillway.internal"

// innerTLS lets Temporal's services talk to each other and to nobody else: they have one certificate, made anew at each
// start, whose key never leaves the memory of this process. The frontend's port has none: a token is asked for there.
func innerTLS() (encryption.TLSConfigProvider, error) {
	fail := func(err error) error { return fmt.Errorf("make the certificate of temporal's services: %w", err) }
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fail(err)
	}
	now := time.Now()
	draft := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: innerName}, DNSNames: []string{innerName},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, draft, draft, key.Public(), key)
	if err != nil {
		return nil, fail(err)
	}
	certificate, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, fail(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(certificate)
	common := func() *tls.Config {
		return &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: certificate}},
			MinVersion:   tls.VersionTLS13,
			Time:         func() time.Time { return now }, // the certificate ends with the process, not by the clock
		}
	}
	server, client := common(), common()
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, trusted
	client.RootCAs, client.ServerName = trusted, innerName
	return &encryption.FixedTLSConfigProvider{InternodeServerConfig: server, InternodeClientConfig: client}, nil
}
