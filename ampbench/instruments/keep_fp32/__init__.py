"""Which modules to keep in fp32."""
