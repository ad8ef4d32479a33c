"""Whether training converges in each precision as in fp32."""
