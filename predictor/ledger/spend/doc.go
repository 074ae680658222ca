// Package spend divides money and time among those who spent them and when, to the picodollar.
package spend
