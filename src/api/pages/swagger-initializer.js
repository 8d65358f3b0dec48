SwaggerUIBundle({
  "dom_id": "#swagger-ui",
  "url": "/openapi.json",
  "deepLinking": true,
  "tryItOutEnabled": true,
  "validatorUrl": "none"
});
