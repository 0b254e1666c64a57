-- Charge images to a quota, all of them or none, or give some back. Return whether it was done, and how many are left.
-- KEYS 1 the images of one API key and day (string)
-- ARGV 1 images; less than 0: so many are given back   2 quota   3 seconds for which the count is kept
set_aside_unless('string', KEYS[1])
local text = redis.call('GET', KEYS[1]) or ''
local charged = #text <= 15 and string.match(text, '^%d+$') and tonumber(text) or 0  -- a damaged count is none
local images, quota = tonumber(ARGV[1]), tonumber(ARGV[2])
if images > 0 and charged + images > quota then return {0, math.max(0, quota - charged)} end
charged = math.max(0, charged + images)
redis.call('SET', KEYS[1], string.format('%.0f', charged), 'EX', ARGV[3])
return {1, math.max(0, quota - charged)}
